#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>
#include <torch/types.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/samplers.h"
#include "lockstep/uneven_inputs.h"
#include "tests/groups.h"
#include "tests/matchers.h"

namespace lockstep::testing {
namespace {

std::vector<int> batches(int rank, int count) {
  std::vector<int> all(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) all[static_cast<std::size_t>(i)] = 100 * rank + i;
  return all;
}

/// How many batches each rank holds: none on the last, where there are several.
int batches_of(int rank, int ranks) { return ranks > 1 && rank == ranks - 1 ? 0 : 3 + rank % 2; }
/// The same without a rank that has nothing.
int some_batches_of(int rank) { return 3 + 2 * rank % 3; }

/// Stands for a training step: one collective over all ranks.
void step(const Group& group) { group.all_reduce(torch::ones({3})).wait(); }

class JoinUneven : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, JoinUneven, ::testing::Values(1, 2, 3, 4, 7));

void end_with_the_first(const Group& group) {
  int fewest = some_batches_of(0);
  for (int rank = 0; rank < group.size(); ++rank) fewest = std::min(fewest, some_batches_of(rank));
  const auto loader = batches(group.rank(), some_batches_of(group.rank()));
  std::vector<int> seen;
  for (const int& batch : join_uneven(loader, group)) {
    seen.push_back(batch);
    step(group);
  }
  EXPECT_EQ(seen, batches(group.rank(), fewest));
  group.barrier().wait();
}

TEST_P(JoinUneven, EndsWithTheFirstRankThatRunsOut) {
  run_groups(GetParam(), [](const Group& group) { end_with_the_first(group); });
}

TEST_P(JoinUneven, ARankWithoutBatchesLetsNobodyBegin) {
  run_groups(GetParam(), [](const Group& group) {
    const auto loader = batches(0, group.rank() == group.size() - 1 ? 0 : 3);
    for ([[maybe_unused]] const int& batch : join_uneven(loader, group)) ADD_FAILURE();
    group.barrier().wait();
  });
}

TEST_P(JoinUneven, UntilLastGoesOnWithoutTheRanksThatRanOut) {
  const int ranks = GetParam();
  run_groups(ranks, [&](const Group& group) {
    int most = 0;
    for (int rank = 0; rank < ranks; ++rank) most = std::max(most, batches_of(rank, ranks));
    const int own = batches_of(group.rank(), ranks);
    const auto loader = batches(group.rank(), own);
    std::vector<int> seen;
    int turns = 0;
    for (const auto& batch : join_uneven(loader, group, until_last)) {
      EXPECT_EQ(batch.has_value(), turns < own);
      if (batch) seen.push_back(*batch);
      step(group);
      ++turns;
    }
    EXPECT_EQ(turns, most);
    EXPECT_EQ(seen, loader);
    group.barrier().wait();
  });
}

TEST_P(JoinUneven, UntilLastOfNothingIsNothing) {
  run_groups(GetParam(), [](const Group& group) {
    const std::vector<int> nothing;
    for ([[maybe_unused]] const auto& batch : join_uneven(nothing, group, until_last))
      ADD_FAILURE();
    group.barrier().wait();
  });
}

TEST_P(JoinUneven, ARankThatThrowsFailsTheOthersWithItsOwnError) {
  const int ranks = GetParam();
  try {
    run_groups(ranks, [&](const Group& group) {
      const auto loader = batches(group.rank(), 5);
      int turn = 0;
      try {
        for ([[maybe_unused]] const int& batch : join_uneven(loader, group)) {
          if (turn++ == 2 && group.rank() == ranks - 1) throw std::runtime_error("the cause");
          step(group);
        }
        ADD_FAILURE() << "rank " << group.rank() << " went on";
      } catch (const CommError& error) {
        EXPECT_THAT(error.what(), HasSubstr(detail::concat("rank ", ranks - 1)));
        EXPECT_THAT(error.what(), Not(HasSubstr("abandoned")));
        throw;
      }
    });
    ADD_FAILURE();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "the cause");
  }
}

TEST_P(JoinUneven, LeavingTogetherLeavesTheGroupUsable) {
  run_groups(GetParam(), [](const Group& group) {
    const auto loader = batches(group.rank(), 5);
    for (const int& batch : join_uneven(loader, group)) {
      if (batch % 100 == 1) break;
    }
    try {
      for ([[maybe_unused]] const int& batch : join_uneven(loader, group))
        throw InvalidArgument("on every rank");
      ADD_FAILURE();
    } catch (const InvalidArgument&) {
    }
    step(group);
    end_with_the_first(group);
  });
}

/// Sample i is the number i.
class SizedNumbers
    : public torch::data::datasets::BatchDataset<SizedNumbers, std::vector<std::size_t>> {
 public:
  explicit SizedNumbers(std::size_t size) : size_(size) {}
  std::vector<std::size_t> get_batch(c10::ArrayRef<std::size_t> indices) override {
    return indices.vec();
  }
  std::optional<std::size_t> size() const override { return size_; }

 private:
  std::size_t size_;
};

TEST(InStepOverDataLoaders, EveryPassOfUnequalLoadersWorks) {
  for (const std::size_t workers : {0, 2}) {
    run_groups(2, [&](const Group& group) {
      const std::size_t size = group.rank() == 0 ? 7 : 19;
      auto loader = torch::data::make_data_loader(
          SizedNumbers(size), DistributedSampler(size, ShardSpec{}, {.shuffle = false}),
          torch::data::DataLoaderOptions(2).workers(workers));
      for (int pass = 0; pass < 3; ++pass) {
        std::vector<std::size_t> seen;
        for (auto& batch : join_uneven(*loader, group)) {
          seen.insert(seen.end(), batch.begin(), batch.end());
          step(group);
        }
        std::vector<std::size_t> expected(group.rank() == 0 ? 7 : 8);
        std::iota(expected.begin(), expected.end(), std::size_t{0});
        EXPECT_EQ(seen, expected) << workers << " workers, pass " << pass;
      }
    });
  }
}

}  // namespace
}  // namespace lockstep::testing
