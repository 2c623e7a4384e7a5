// The simulated device reports accesses that no event orders; tests of streams rely on it.
#include "tests/device/simulation/simulation.h"

#include <c10/core/StreamGuard.h>

#include <cmath>

#include "tests/device/on_devices.h"
#include "tests/matchers.h"

namespace lockstep::simulation {
namespace {

using namespace testing;

const at::Device device(device_type(), 0);

/// Each test ends with idle streams, and no race but those that it asks for.
class Simulation : public OnSimulation {
 protected:
  void TearDown() override {
    synchronize_all();
    EXPECT_THAT(take_races(), IsEmpty());
  }
};

TEST_F(Simulation, AMissingWaitIsARace) {
  for (const bool waits : {true, false}) {
    auto x = at::zeros({1024}, device);
    synchronize_all();
    const auto stream = new_stream(device);
    slow_down(0, 3000);
    x.add_(1);
    if (waits) order(current_stream(device), stream);
    double sum = 0;
    {
      const c10::StreamGuard on(stream);
      sum = x.sum().item<double>();
    }
    slow_down(0, 0);
    synchronize_all();
    if (waits) {
      EXPECT_EQ(sum, 1024);
      EXPECT_THAT(take_races(), IsEmpty());
    } else {
      // The sum may be right all the same.
      EXPECT_THAT(take_races(), Contains(HasSubstr("reads memory that aten::add.out")));
    }
  }
}

TEST_F(Simulation, MemoryThatIsFreedTooEarlyIsARace) {
  // CUDA's caching allocator does not release memory, but gives it to the same stream again.
  const bool caches = device_type() == at::kCUDA;
  constexpr std::int64_t elements = 300'000;
  for (const bool recorded : {true, false}) {
    const auto stream = new_stream(device);
    auto x = at::ones({elements}, device);
    auto sum = at::zeros({}, device);
    synchronize_all();
    const void* const at = x.const_data_ptr();
    slow_down(0, 20000);
    {
      const c10::StreamGuard on(stream);
      sum.add_(x.sum());
    }
    if (recorded) x.record_stream(stream);
    x.reset();
    at::Tensor next;
    if (caches) {
      next = at::zeros({elements}, device);
      EXPECT_EQ(next.const_data_ptr() == at, !recorded);
    }
    synchronize_all();
    slow_down(0, 0);
    const auto races = take_races();
    if (recorded) {
      EXPECT_EQ(sum.item<double>(), elements);
      EXPECT_THAT(races, IsEmpty());
    } else {
      EXPECT_TRUE(caches || std::isnan(sum.item<double>()));
      EXPECT_THAT(races, Contains(HasSubstr(caches ? "the allocation of memory"
                                                   : "the release of memory")));
    }
  }
}

}  // namespace
}  // namespace lockstep::simulation
