#include "lockstep/comm/statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "ranks.h"

namespace lockstep::testing {
namespace {

using std::chrono::nanoseconds;
using ::testing::HasSubstr;

TEST(Statistics, CountCollectivesAndBytesByBucket) {
  run_ranks(3, [](std::shared_ptr<Communicator> group) {
    std::vector<float> values(100000, 1);
    std::vector<float> gathered(9);
    for (int i = 0; i < 2; ++i) {
      group->attribute_to(i);
      for (int repeat = 0; repeat <= i; ++repeat) {
        group->all_reduce(values.data(), values.size(), DType::f32, ReduceOp::avg).wait();
      }
    }
    group->attribute_to(-1);
    group->all_gather(values.data(), gathered.data(), 3, DType::f32).wait();
    group->barrier().wait();

    const auto rows = group->statistics();
    ASSERT_EQ(rows.size(), 4U);
    const auto expect = [&](std::size_t i, Collective collective, int bucket, std::uint64_t count,
                            std::uint64_t bytes) {
      EXPECT_EQ(rows[i].collective, collective);
      EXPECT_EQ(rows[i].bucket, bucket);
      EXPECT_EQ(rows[i].count, count);
      EXPECT_EQ(rows[i].bytes, bytes);
    };
    expect(0, Collective::all_reduce, 0, 1, 400000);
    expect(1, Collective::all_reduce, 1, 2, 800000);
    expect(2, Collective::all_gather, -1, 1, 12);
    expect(3, Collective::barrier, -1, 1, 0);
    // Ordinary memory is copied in and out by each rank itself.
    EXPECT_GT(rows[0].working, nanoseconds(0));
    EXPECT_GT(rows[1].working, nanoseconds(0));
    EXPECT_GE(rows[0].waiting, nanoseconds(0));
  });
}

TEST(Statistics, LeaveOutWhatWasRefused) {
  run_ranks(1, [](std::shared_ptr<Communicator> group) {
    float value = 0;
    EXPECT_ANY_THROW(group->broadcast(&value, 1, DType::f32, 5).wait());
    EXPECT_TRUE(group->statistics().empty());
  });
}

TEST(Statistics, AreATableWithTheirSum) {
  const Statistics rows{{.collective = Collective::all_reduce,
                         .bucket = 7,
                         .count = 3,
                         .bytes = 2'500'000,
                         .waiting = std::chrono::microseconds(1500),
                         .working = std::chrono::microseconds(250)},
                        {.collective = Collective::barrier, .count = 4}};
  const auto text = to_text(rows);
  EXPECT_THAT(text,
              ::testing::ContainsRegex("all_reduce of bucket 7 +3 +2\\.50 +0\\.25 +1\\.50\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("barrier +4 +0\\.00 +0\\.00 +0\\.00\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("\nall +7 +2\\.50 +0\\.25 +1\\.50\n$"));
}

}  // namespace
}  // namespace lockstep::testing
