#include "comm/cost/cost.h"

#include <gtest/gtest.h>

#include <vector>

#include "comm/messages/options.h"

// Everything expected here is worked out by hand from docs/algorithms.md.

namespace lockstep::testing {
namespace {

constexpr double S = 1200;  // bytes of a rank's buffer

Placement placed(const char* hosts) {
  std::vector<int> numbers;
  for (const char* at = hosts; *at != '\0'; ++at) numbers.push_back(*at - 'a');
  return Placement::of(numbers);
}

messages::Algorithm cheapest(const char* hosts, std::size_t bytes) {
  return messages::cheapest(placed(hosts), bytes);
}

TEST(Placement, CountsHostsAndWhoseNextIsElsewhere) {
  for (const auto& blocks : {placed("aabb"), Placement::uniform(2, 2)}) {
    EXPECT_EQ(blocks.ranks, 4);
    EXPECT_EQ(blocks.hosts, 2);
    EXPECT_EQ(blocks.most_on_host, 2);
    EXPECT_EQ(blocks.least_on_host, 2);
    EXPECT_EQ(blocks.exits, 1);  // 1 → 2, 3 → 0
    EXPECT_EQ(blocks.crossings, 2);
  }
  EXPECT_EQ(placed("abab").exits, 2);
  EXPECT_EQ(placed("abab").crossings, 4);
  EXPECT_EQ(placed("aab").most_on_host, 2);
  EXPECT_EQ(placed("aab").least_on_host, 1);
  EXPECT_EQ(placed("aaa").exits, 0);
  EXPECT_EQ(placed("a").crossings, 0);
}

TEST(Traffic, OfMemoryIsWhatAlgorithmsSay) {
  EXPECT_EQ(host_direct(3, S).synchronizations, 2);
  EXPECT_EQ(host_direct(3, S).moved, 2 * 3 * S);  // N·S read, N·S written
  EXPECT_EQ(host_direct(1, S).moved, 0);
}

TEST(Traffic, OfBothAlgorithmsIsEqualWhereEachHostHasOneRank) {
  const auto one_each = Placement::uniform(4, 1);
  EXPECT_DOUBLE_EQ(mpi_direct(one_each, S).sent, 2 * 3 * S / 4);  // 2(N−1)/N·S
  EXPECT_DOUBLE_EQ(mpi_ring(one_each, S).sent, 2 * 3 * S / 4);
  EXPECT_EQ(mpi_direct(one_each, S).remote_messages, 1 + 2);
  EXPECT_EQ(mpi_ring(one_each, S).remote_messages, 1 + 2 * 3);
  EXPECT_EQ(mpi_direct(one_each, S).messages, 3 + 2 * 3);
  EXPECT_EQ(mpi_ring(one_each, S).messages, 3 + 2 * 3);
}

TEST(Traffic, OfHostsWithSeveralRanksIsLessByRingAndLeastInSlices) {
  const auto blocks = placed("aabb");
  EXPECT_DOUBLE_EQ(mpi_direct(blocks, S).sent, 2 * S);  // 2 ranks send 2(N−L)/N·S
  EXPECT_DOUBLE_EQ(mpi_ring(blocks, S).sent, 1.5 * S);  // one of them 2(N−1)/N·S
  EXPECT_DOUBLE_EQ(mpi_ring(placed("abab"), S).sent, 3 * S);
  EXPECT_DOUBLE_EQ(hierarchical_all_reduce(blocks, S).sent, S);  // 2(H−1)/H·S
  // Six steps, of which two of four ranks' go elsewhere.
  EXPECT_EQ(mpi_ring(blocks, S).remote_messages, 1 + 3);
  EXPECT_EQ(mpi_ring(blocks, S).local_messages, 3);
  EXPECT_EQ(hierarchical_all_reduce(placed("aaa"), S).moved, host_direct(3, S).moved);
}

TEST(Traffic, OfOtherCollectives) {
  const auto two = placed("ab");
  EXPECT_EQ(mpi_all_gather(two, S).sent, S);
  EXPECT_EQ(mpi_all_to_all(two, S).sent, S / 2);
  EXPECT_EQ(mpi_all_gather(placed("aabb"), S).sent, 4 * S);  // 2 ranks to 2 others
  EXPECT_EQ(mpi_all_gather(placed("a"), S).messages, 0);
}

TEST(Costs, AreUnitsTimesWhatTheyCost) {
  const Costs costs{.synchronization = 1,
                    .synchronization_rank = 0.5,
                    .local_message = 10,
                    .remote_message = 100,
                    .message = 1000,
                    .sent_byte = 1e4,
                    .moved_byte = 1e5};
  const Traffic traffic{.synchronizations = 1,
                        .local_messages = 2,
                        .remote_messages = 3,
                        .messages = 4,
                        .sent = 5,
                        .moved = 6};
  EXPECT_EQ(costs.seconds(traffic, Placement::uniform(1, 4)),
            1 + 2 * 0.5 + 20 + 300 + 4000 + 5e4 + 6e5);
  EXPECT_EQ(costs.between_hosts(traffic), 300 + 5e4);
}

TEST(Algorithm, IsTheCheaperOne) {
  using messages::Algorithm;
  // Equal bytes in fewer steps.
  EXPECT_EQ(cheapest("abcd", std::size_t{1} << 30), Algorithm::direct);
  EXPECT_EQ(cheapest("aaaa", std::size_t{1} << 30), Algorithm::direct);
  // Fewer bytes between hosts, once they outweigh the steps.
  EXPECT_EQ(cheapest("aabb", std::size_t{1} << 30), Algorithm::ring);
  EXPECT_EQ(cheapest("aabb", 4096), Algorithm::direct);
  // Every neighbour is on the other host.
  EXPECT_EQ(cheapest("abab", std::size_t{1} << 30), Algorithm::direct);
  EXPECT_EQ(cheapest("a", 0), Algorithm::direct);
}

}  // namespace
}  // namespace lockstep::testing
