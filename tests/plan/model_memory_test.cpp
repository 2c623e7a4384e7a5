#include <gtest/gtest.h>

#include "plan/forecast.h"

// Everything expected here is worked out by hand.

namespace lockstep::testing {
namespace {

using plan::Keeping;

constexpr int adam = 2;

TEST(ModelMemory, IsThatOfTheZeroPaper) {
  // Rajbhandari et al., figure 1, has 16-bit parameters and 12 bytes of state for 64 ranks: 120 GB,
  // 31.4 GB and 16.6 GB of 7.5 billion. With float32 throughout, per parameter: 4 + 4 + 8 bytes,
  // 4 + 4 + 8/64 and 4 + (4 + 8)/64.
  Keeping keeping{.state_tensors = adam, .nodes = 8, .ranks_per_node = 8};
  EXPECT_DOUBLE_EQ(plan::bytes_per_parameter(keeping).of_rank, 16);
  keeping.shard = Shard::optimizer;
  EXPECT_DOUBLE_EQ(plan::bytes_per_parameter(keeping).of_rank, 8.125);
  keeping.shard = Shard::gradients;
  EXPECT_DOUBLE_EQ(plan::bytes_per_parameter(keeping).of_rank, 4.1875);
  EXPECT_DOUBLE_EQ(plan::bytes_per_parameter(keeping).of_host(8), 33.5);
  EXPECT_EQ(plan::state_tensors("amsgrad"), 3);
}

TEST(ModelMemory, OfOneCopyIsSharedByTheHost) {
  const Keeping keeping{
      .share_memory = true, .state_tensors = adam, .nodes = 1, .ranks_per_node = 4};
  const auto memory = plan::bytes_per_parameter(keeping);
  EXPECT_DOUBLE_EQ(memory.shared, 12);  // parameters and two tensors of state
  EXPECT_DOUBLE_EQ(memory.of_rank, 8);  // .grad(), and the bucket
  EXPECT_DOUBLE_EQ(memory.of_host(4), 44);
  const auto of_two_hosts = plan::bytes_per_parameter(
      {.share_memory = true, .state_tensors = adam, .nodes = 2, .ranks_per_node = 4});
  EXPECT_DOUBLE_EQ(of_two_hosts.of_host(4), 28);  // .grad() is in the bucket
}

TEST(ModelMemory, OfOneRankIsTheSameInAllWaysButTheLast) {
  for (const auto shard : {Shard::none, Shard::optimizer, Shard::gradients}) {
    EXPECT_DOUBLE_EQ(plan::bytes_per_parameter({.shard = shard, .state_tensors = 1}).of_host(1),
                     12);
  }
  EXPECT_DOUBLE_EQ(plan::bytes_per_parameter({.share_memory = true, .state_tensors = 1}).of_host(1),
                   12);
}

TEST(ModelMemory, GivesTheLargestModel) {
  const Keeping keeping{.state_tensors = adam, .nodes = 2, .ranks_per_node = 4};
  // 4 ranks need 2 bytes each for other things; 16 bytes a parameter and rank.
  EXPECT_DOUBLE_EQ(plan::largest_model(keeping, 648, 2), 10);
  EXPECT_EQ(plan::largest_model(keeping, 7, 2), 0);
}

}  // namespace
}  // namespace lockstep::testing
