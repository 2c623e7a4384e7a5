#include "bench/pattern.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "lockstep/types.h"

namespace lockstep::bench {
namespace {

std::vector<float> filled(const Pattern& pattern, std::size_t count, std::size_t start) {
  std::vector<float> values(count);
  pattern.fill(reinterpret_cast<std::byte*>(values.data()), count, start);
  return values;
}

std::int64_t wrong(const Pattern& pattern, const std::vector<float>& values, std::size_t start) {
  return pattern.count_wrong(reinterpret_cast<const std::byte*>(values.data()), values.size(),
                             start);
}

TEST(Pattern, IsOneSequenceWhereverItIsEntered) {
  const Pattern pattern(DType::f32);
  const auto whole = filled(pattern, 20000, 5);
  for (const std::size_t begin : {1, 4092, 4093, 9000}) {
    const auto part = filled(pattern, 300, 5 + begin);
    EXPECT_EQ(part, std::vector<float>(whole.begin() + static_cast<std::ptrdiff_t>(begin),
                                       whole.begin() + static_cast<std::ptrdiff_t>(begin) + 300));
  }
}

TEST(Pattern, CountsEachWrongElementOnce) {
  const Pattern pattern(DType::f32);
  auto values = filled(pattern, 10000, 17);
  EXPECT_EQ(wrong(pattern, values, 17), 0);
  values[0] += 1;
  values[4095] += 1;
  values[9999] += 1;
  EXPECT_EQ(wrong(pattern, values, 17), 3);
  EXPECT_GT(wrong(pattern, values, 18), 9000);
}

TEST(Pattern, TakesMinusZeroForAnotherElement) {
  const Pattern pattern(DType::f32);
  auto values = filled(pattern, 10, 0);
  values[3] = -values[3];
  EXPECT_EQ(wrong(pattern, values, 0), 1);
}

TEST(Pattern, ReducesInRankOrder) {
  const Pattern pattern(DType::f32);
  const std::size_t starts[] = {3, 100, 4000};
  const auto sums = filled(pattern.reduced(ReduceOp::sum, starts), 5000, 0);
  const auto a = filled(pattern, 5000, 3);
  const auto b = filled(pattern, 5000, 100);
  const auto c = filled(pattern, 5000, 4000);
  for (std::size_t i = 0; i < sums.size(); ++i) ASSERT_EQ(sums[i], (a[i] + b[i]) + c[i]);
}

TEST(Pattern, RanksThatMeetStartApart) {
  for (std::uint64_t turn = 0; turn < 1000; ++turn) {
    for (int rank = 1; rank < 8; ++rank) {
      EXPECT_NE(pattern_start(rank, turn), pattern_start(0, turn));
    }
    EXPECT_NE(pattern_start(0, turn), pattern_start(0, turn + 1));
  }
}

}  // namespace
}  // namespace lockstep::bench
