#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/operation.h"
#include "kernels/reduce.h"
#include "tests/ranks.h"

// The accesses of a step with share_memory, without LibTorch, so that the thread sanitizer sees
// them: src/parallel/update/shared_update.cpp orders them by the same collectives.

namespace lockstep::testing {
namespace {

/// The memory that each rank passes, in rank order.
std::vector<std::byte*> memory_of_ranks(Communicator& group,
                                        const std::shared_ptr<std::byte>& own) {
  std::vector<std::int64_t> places(static_cast<std::size_t>(group.size()));
  const auto place = static_cast<std::int64_t>(*group.place_of(own.get()));
  group.all_gather(&place, places.data(), 1, DType::i64).wait();
  std::vector<std::byte*> memory;
  for (const auto at : places) memory.push_back(group.at_place(static_cast<std::uint64_t>(at)));
  return memory;
}

/// Each rank computes gradients from all parameters, adds its range of all ranks' gradients and
/// updates its range of the parameters.
void check_steps(const std::shared_ptr<Communicator>& group, std::size_t count) {
  const auto size = static_cast<std::size_t>(group->size());
  const auto own = detail::slice_of(count, sizeof(float), group->rank(), group->size());
  const auto bytes = std::max<std::size_t>(count * sizeof(float), 1);
  const auto gradients = group->allocate(bytes);
  const auto block = group->allocate(group->rank() == 0 ? bytes : 1);
  auto* const gradient = reinterpret_cast<float*>(gradients.get());
  auto* const parameters = reinterpret_cast<float*>(memory_of_ranks(*group, block).front());
  std::vector<const std::byte*> inputs;  // of this rank's range
  for (const auto* of_rank : memory_of_ranks(*group, gradients))
    inputs.push_back(of_rank + own.begin * sizeof(float));
  if (group->rank() == 0) std::fill_n(parameters, count, 1024.0f);
  group->barrier().wait();

  for (int step = 0; step < 8; ++step) {
    for (std::size_t i = 0; i < count; ++i)
      gradient[i] = parameters[i] * static_cast<float>(group->rank() + 1);
    std::int64_t changed = 1;  // the agreement that follows each backward
    group->all_reduce(&changed, 1, DType::i64, ReduceOp::max).wait();
    std::vector<float> sum(own.length);
    auto* const output = reinterpret_cast<std::byte*>(sum.data());
    kernels::reduce(DType::f32, ReduceOp::sum, inputs, {{output}}, own.length);
    // The sum over ranks is a known multiple of the parameter, so each step halves it.
    const auto factor = 1.0f / static_cast<float>(size * (size + 1));
    for (std::size_t i = 0; i < own.length; ++i) parameters[own.begin + i] -= factor * sum[i];
    group->barrier().wait();
  }
  for (std::size_t i = 0; i < count; ++i) ASSERT_NEAR(parameters[i], 4.0f, 1e-4f) << i;
  group->barrier().wait();  // no rank releases the block while another one reads it
}

class SharedUpdateOrder : public ::testing::TestWithParam<int> {};

TEST_P(SharedUpdateOrder, EachStepReadsWhatAllRanksWrote) {
  for (const std::size_t count : {0, 1, 17, 1000, 4099}) {
    run_ranks(GetParam(), [=](const auto& group) { check_steps(group, count); });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, SharedUpdateOrder, ::testing::Values(1, 2, 3, 7));

}  // namespace
}  // namespace lockstep::testing
