#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdint>
#include <memory>

#include "comm/flight/flight_record.h"
#include "lockstep/distributed_data_parallel.h"
#include "tests/parallel/models.h"

namespace lockstep::testing {
namespace {

/// Steps in the flight record of a rank in a world of this size.
std::uint64_t recorded_steps(const Group& world) {
  std::uint64_t steps = 0;
  for (const auto& record : detail::read_flight_records()) {
    if (record->file().pid == ::getpid() && record->size() == world.size() &&
        record->rank() == world.rank()) {
      steps += record->step();
    }
  }
  return steps;
}

TEST(StepCount, IsTheNumberOfBackwardPasses) {
  constexpr int ranks = 5;  // a size that no other test uses at the same time
  on_ranks(ranks, [&](const Group& world) {
    // A rank on a device records the operations of its host world only.
    if (!world.device().is_cpu()) return;
    auto model = std::make_shared<Terms>(some_shapes, at::kDouble);
    DistributedDataParallel ddp(model, world);
    EXPECT_EQ(recorded_steps(world), 0U);
    for (int step = 0; step < 3; ++step) {
      ddp(coefficients(world.rank(), *model)).backward();
    }
    EXPECT_EQ(recorded_steps(world), 3U);
  });
}

}  // namespace
}  // namespace lockstep::testing
