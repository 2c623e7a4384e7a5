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
// them: src/parallel/shared_update.cpp orders them by the same collectives.

namespace lockstep::testing {
namespace {

/// Memory of one rank that all ranks of the group access.
float* at_place_of_rank(Communicator& group, float* own, int rank) {
  std::vector<std::int64_t> places(static_cast<std::size_t>(group.size()));
  const auto place = static_cast<std::int64_t>(*group.place_of(own));
  group.all_gather(&place, places.data(), 1, DType::i64).wait();
  const auto found = static_cast<std::uint64_t>(places[static_cast<std::size_t>(rank)]);
  return reinterpret_cast<float*>(group.at_place(found));
}

/// Each rank computes gradients from all parameters, averages its range of all ranks' gradients and
/// updates its range of the parameters.
void check_steps(const std::shared_ptr<Communicator>& group, std::size_t count) {
  const auto size = static_cast<std::size_t>(group->size());
  const auto own = detail::slice_of(count, sizeof(float), group->rank(), group->size());
  const auto bytes = std::max<std::size_t>(count * sizeof(float), 1);
  const auto gradients = group->allocate(bytes);
  const auto block = group->allocate(group->rank() == 0 ? bytes : 1);
  auto* const gradient = reinterpret_cast<float*>(gradients.get());
  auto* const parameters = at_place_of_rank(*group, reinterpret_cast<float*>(block.get()), 0);
  std::vector<const std::byte*> gradients_of_ranks;
  for (int rank = 0; rank < group->size(); ++rank) {
    gradients_of_ranks.push_back(
        reinterpret_cast<const std::byte*>(at_place_of_rank(*group, gradient, rank)));
  }
  if (group->rank() == 0) std::fill_n(parameters, count, 1024.0f);
  group->barrier().wait();

  for (int step = 0; step < 8; ++step) {
    for (std::size_t i = 0; i < count; ++i)
      gradient[i] = parameters[i] * static_cast<float>(group->rank() + 1);
    std::int64_t changed = 1;  // the agreement that follows each backward
    group->all_reduce(&changed, 1, DType::i64, ReduceOp::max).wait();
    std::vector<const std::byte*> inputs;
    for (const auto* of_rank : gradients_of_ranks)
      inputs.push_back(of_rank + own.begin * sizeof(float));
    std::vector<float> mean(own.length);
    auto* const output = reinterpret_cast<std::byte*>(mean.data());
    kernels::reduce(DType::f32, ReduceOp::sum, inputs, {{output}}, own.length);
    // The sum over ranks is a known multiple of the parameter, so each step halves it.
    const auto factor = 1.0f / static_cast<float>(size * (size + 1));
    for (std::size_t i = 0; i < own.length; ++i) parameters[own.begin + i] -= factor * mean[i];
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
