#include "comm/hierarchical/host_topology.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <utility>
#include <vector>

// Values are worked out by hand.

namespace lockstep::testing {
namespace {

using hierarchical::HostTopology;
using hierarchical::Shards;
using Counts = std::vector<std::size_t>;

HostTopology rank_of(int local_rank, int local_size, int shards) {
  return {.size = 2 * local_size,
          .hosts = 2,
          .local_rank = local_rank,
          .local_size = local_size,
          .shards = shards};
}

TEST(Shards, AreWholeCacheLines) {
  const auto shards = [](int rank, std::size_t count, std::size_t element) {
    return Shards::of_cache_lines(rank_of(rank, 4, 3), count, element);
  };
  // 7 lines of 16 floats among 3 leaders.
  EXPECT_EQ(shards(0, 100, 4).counts(), (Counts{48, 48, 4, 0}));
  EXPECT_EQ(shards(0, 16, 4).counts(), (Counts{16, 0, 0, 0}));
  EXPECT_EQ(shards(0, 0, 4).counts(), (Counts{0, 0, 0, 0}));
  EXPECT_EQ(Shards::of_cache_lines(rank_of(0, 5, 3), 100, 4).counts(), (Counts{48, 48, 4, 0, 0}));
  EXPECT_EQ(shards(0, 24, 8).counts(), (Counts{8, 8, 8, 0}));
  const std::vector<std::pair<std::size_t, std::size_t>> own{{0, 48}, {48, 48}, {96, 4}, {100, 0}};
  for (int rank = 0; rank < 4; ++rank) {
    const auto& [begin, length] = own[static_cast<std::size_t>(rank)];
    EXPECT_EQ(shards(rank, 100, 4).own().begin, begin);
    EXPECT_EQ(shards(rank, 100, 4).own().length, length);
  }
}

Counts at_offsets(const Counts& offsets, std::size_t count, int leaders, std::size_t turn) {
  return Shards::at_offsets(rank_of(0, leaders, leaders), offsets, count, turn).counts();
}

TEST(Shards, HoldWholeParameters) {
  const Counts offsets{0, 300, 400, 700};
  EXPECT_EQ(at_offsets(offsets, 800, 1, 0), (Counts{800}));
  EXPECT_EQ(at_offsets(offsets, 800, 2, 0), (Counts{400, 400}));
  EXPECT_EQ(at_offsets(offsets, 800, 3, 0), (Counts{300, 100, 400}));
  EXPECT_EQ(at_offsets(offsets, 800, 8, 4), (Counts{0, 0, 0, 0, 300, 100, 300, 100}));
  const Counts whole{0};  // goes to the leaders in turn
  EXPECT_EQ(at_offsets(whole, 50, 3, 0), (Counts{50, 0, 0}));
  EXPECT_EQ(at_offsets(whole, 50, 3, 1), (Counts{0, 50, 0}));
  EXPECT_EQ(at_offsets(whole, 50, 3, 5), (Counts{0, 0, 50}));
  EXPECT_EQ(at_offsets({}, 50, 2, 0), (Counts{50, 0}));
  EXPECT_EQ(at_offsets(whole, 0, 2, 0), (Counts{0, 0}));
  const auto of_no_leader = Shards::at_offsets(rank_of(3, 5, 2), Counts{0, 30}, 60, 0);
  EXPECT_EQ(of_no_leader.counts(), (Counts{30, 30, 0, 0, 0}));
  EXPECT_EQ(of_no_leader.own().begin, 60U);
  EXPECT_EQ(of_no_leader.own().length, 0U);
}

}  // namespace
}  // namespace lockstep::testing
