#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/error.h"
#include "lockstep/samplers.h"

namespace lockstep {
namespace {

TEST(EvaluationSampler, DrawsEachIndexOnceOverAllRanks) {
  for (const int ranks : {1, 2, 3, 7}) {
    for (const std::size_t size : {0, 1, 2, 6, 7, 8, 100, 1001}) {
      std::vector<int> times(size, 0);
      std::size_t fewest = size + 1;
      std::size_t most = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        EvaluationSampler sampler(size, ShardSpec{.rank = rank, .ranks = ranks});
        std::size_t drawn = 0;
        while (const auto batch = sampler.next(3)) {
          EXPECT_FALSE(batch->empty());
          for (const std::size_t index : *batch) ++times.at(index);
          drawn += batch->size();
        }
        fewest = std::min(fewest, drawn);
        most = std::max(most, drawn);
      }
      EXPECT_EQ(std::count(times.begin(), times.end(), 1), static_cast<std::ptrdiff_t>(size))
          << size << " samples on " << ranks << " ranks";
      EXPECT_LE(most - fewest, 1u);
    }
  }
}

TEST(EvaluationSampler, EveryPassIsTheSame) {
  EvaluationSampler sampler(10, ShardSpec{.rank = 1, .ranks = 3});
  const auto first = sampler.next(100);
  EXPECT_EQ(first, (std::vector<std::size_t>{3, 4, 5}));
  EXPECT_EQ(sampler.next(100), std::nullopt);
  sampler.reset();
  EXPECT_EQ(sampler.next(100), first);
  sampler.reset(3);
  EXPECT_EQ(sampler.next(100), std::vector<std::size_t>{1});
}

TEST(EvaluationSampler, RefusesARankOutsideTheGroup) {
  EXPECT_THROW(EvaluationSampler(10, ShardSpec{.rank = 3, .ranks = 3}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep
