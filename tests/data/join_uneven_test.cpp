#include <torch/data/dataloader.h>
#include <torch/data/datasets/tensor.h>
#include <torch/types.h>

#include <algorithm>
#include <stdexcept>

#include "core/text.h"
#include "lockstep/partition.h"
#include "lockstep/samplers.h"
#include "lockstep/uneven_inputs.h"
#include "tests/groups.h"
#include "tests/matchers.h"
#include "tests/message_of.h"
#include "tests/on_ranks.h"

namespace lockstep::testing {
namespace {

using Batch = torch::data::Example<>;
using Batches = std::vector<Batch>;

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

constexpr auto on_ranks = run_groups;

SUITE_ON_RANKS(JoinUneven, 1, 2, 3, 4, 7);

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

TEST_P_ON_RANKS(JoinUneven, EndsWithTheFirstRankThatRunsOut) {
  end_with_the_first(world);
  // If one rank has no batches, no rank begins.
  const auto loader = batches(0, world.rank() == world.size() - 1 ? 0 : 3);
  for ([[maybe_unused]] const int& batch : join_uneven(loader, world)) ADD_FAILURE();
  world.barrier().wait();
}

TEST_P_ON_RANKS(JoinUneven, UntilLastGoesOnWithoutTheRanksThatRanOut) {
  const int ranks = world.size();
  int most = 0;
  for (int rank = 0; rank < ranks; ++rank) most = std::max(most, batches_of(rank, ranks));
  const int own = batches_of(world.rank(), ranks);
  const auto loader = batches(world.rank(), own);
  std::vector<int> seen;
  int turns = 0;
  for (const auto& batch : join_uneven(loader, world, until_last)) {
    EXPECT_EQ(batch.has_value(), turns < own);
    if (batch) seen.push_back(*batch);
    step(world);
    ++turns;
  }
  EXPECT_EQ(turns, most);
  EXPECT_EQ(seen, loader);
  const std::vector<int> nothing;
  for ([[maybe_unused]] const auto& batch : join_uneven(nothing, world, until_last)) ADD_FAILURE();
  world.barrier().wait();
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

TEST_P_ON_RANKS(JoinUneven, LeavingTogetherLeavesTheGroupUsable) {
  const auto loader = batches(world.rank(), 5);
  for (const int& batch : join_uneven(loader, world)) {
    if (batch % 100 == 1) break;
  }
  const auto leave = [&] {
    for ([[maybe_unused]] const int& batch : join_uneven(loader, world))
      throw InvalidArgument("on every rank");
  };
  EXPECT_THROW(leave(), InvalidArgument);
  step(world);
  end_with_the_first(world);
}

TEST(InStepOverDataLoaders, EveryPassOfUnequalLoadersWorks) {
  for (const std::size_t workers : {0, 2}) {
    run_groups(2, [&](const Group& group) {
      const std::size_t size = group.rank() == 0 ? 7 : 19;
      auto loader = torch::data::make_data_loader(
          torch::data::datasets::TensorDataset(torch::arange(static_cast<std::int64_t>(size))),
          DistributedSampler(size, ShardSpec{}, {.shuffle = false}),
          torch::data::DataLoaderOptions(2).workers(workers));
      for (int pass = 0; pass < 3; ++pass) {
        std::vector<int> seen;
        for (auto& batch : join_uneven(*loader, group)) {
          for (const auto& example : batch) seen.push_back(example.data.item<int>());
          step(group);
        }
        EXPECT_EQ(seen, batches(0, group.rank() == 0 ? 7 : 8)) << workers << " workers " << pass;
      }
    });
  }
}

Batch batch_of(std::int64_t rows, at::ScalarType data, at::ScalarType target) {
  return {torch::arange(rows * 6).reshape({rows, 2, 3}).to(data), torch::arange(rows).to(target)};
}

/// Batches of all numbers of rows around that of the ranks, and of several dtypes.
Batches all_batches() {
  return {batch_of(8, at::kFloat, at::kLong), batch_of(1, at::kFloat, at::kLong),
          batch_of(0, at::kDouble, at::kInt), batch_of(7, at::kHalf, at::kBool),
          batch_of(20, at::kByte, at::kFloat)};
}

SUITE_ON_RANKS(Scatter, 1, 2, 3, 4, 7);

void expect_own_rows(const Group& group) {
  const Batches expected = all_batches();
  Batches on_rank0 = group.rank() == 0 ? all_batches() : Batches{};
  std::size_t turn = 0;
  for (const Batch& batch : scatter_from_rank0(group.rank() == 0 ? &on_rank0 : nullptr, group)) {
    const Batch& whole = expected.at(turn++);
    const std::int64_t rows = whole.data.size(0);
    const std::int64_t first = rows * group.rank() / group.size();
    const std::int64_t last = rows * (group.rank() + 1) / group.size();
    EXPECT_TRUE(torch::equal(batch.data, whole.data.slice(0, first, last)));
    EXPECT_TRUE(torch::equal(batch.target, whole.target.slice(0, first, last)));
    EXPECT_EQ(batch.target.scalar_type(), whole.target.scalar_type());
    EXPECT_TRUE(batch.data.is_contiguous());
  }
  EXPECT_EQ(turn, expected.size());
}

TEST_P_ON_RANKS(Scatter, GivesEachRankItsRows) {
  expect_own_rows(world);
  Batches nothing;
  for ([[maybe_unused]] const Batch& batch : scatter_from_rank0(&nothing, world)) ADD_FAILURE();
  expect_own_rows(world);
  // Earlier batches stay as they were.
  Batches source{{torch::full({8, 1}, 1.0), torch::ones({8})},
                 {torch::full({8, 1}, 2.0), torch::ones({8})}};
  Batches kept;
  for (const Batch& batch : scatter_from_rank0(&source, world)) kept.push_back(batch);
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_TRUE(kept[0].data.eq(1).all().item<bool>());
  EXPECT_TRUE(kept[1].data.eq(2).all().item<bool>());
}

TEST_P_ON_RANKS(Scatter, WhatRank0CannotDealIsSaidOnEveryRank) {
  const Batch sound = batch_of(8, at::kFloat, at::kLong);
  const std::pair<Batches, std::string> cases[] = {
      {{sound, {torch::zeros({3, 2}), torch::zeros({2})}}, "got 3 rows of data and 2 of target"},
      {{{torch::zeros({3}), torch::zeros({})}}, "got target of 0 dimensions"},
      {{sound, sound, {torch::zeros({3}), {}}}, "got target of 0 dimensions"}};
  for (const auto& [source, said] : cases) {
    Batches own = source;
    std::size_t turns = 1;
    const auto scatter = [&] {
      for ([[maybe_unused]] const Batch& batch : scatter_from_rank0(&own, world)) ++turns;
    };
    const bool first = world.rank() == 0;
    EXPECT_THAT(first ? message_of<InvalidArgument>(scatter) : message_of<DataError>(scatter),
                AllOf(HasSubstr(said), HasSubstr(first ? "" : "rank 0: ")));
    EXPECT_EQ(turns, source.size());
    expect_own_rows(world);
  }
}

class Broken : public torch::data::datasets::BatchDataset<Broken, Batch> {
 public:
  Batch get_batch(c10::ArrayRef<std::size_t> indices) override {
    if (indices.front() >= 4) throw DataError("broken: offset 4");
    return batch_of(static_cast<std::int64_t>(indices.size()), at::kFloat, at::kLong);
  }
  std::optional<std::size_t> size() const override { return 8; }
};

TEST_P_ON_RANKS(Scatter, ALoadersErrorWhatCannotBeCopiedAndNoLoaderAreErrorsOnEveryRank) {
  int turns = 0;
  const auto scatter = [&](auto* source) {
    for ([[maybe_unused]] const Batch& batch : scatter_from_rank0(source, world)) ++turns;
  };
  Batches sparse{{torch::eye(6).to_sparse(), torch::arange(6)}};
  EXPECT_THROW(scatter(&sparse), std::exception);
  EXPECT_THROW(scatter(static_cast<Batches*>(nullptr)), Error);
  struct Throwing {
    Batch* begin() { throw 7; }
    Batch* end() { return nullptr; }
  } throwing;
  if (world.rank() == 0)
    EXPECT_THROW(scatter(&throwing), int);
  else
    EXPECT_EQ(message_of<DataError>([&] { scatter(&throwing); }),
              "rank 0: an exception that is not a std::exception");
  EXPECT_EQ(turns, 0);
  expect_own_rows(world);
  auto loader = torch::data::make_data_loader(
      Broken(), DistributedSampler(8, ShardSpec{}, {.shuffle = false}), 2);
  try {
    scatter(loader.get());
    ADD_FAILURE();
  } catch (const DataError& error) {
    EXPECT_STREQ(error.what(), world.rank() == 0 ? "broken: offset 4" : "rank 0: broken: offset 4");
    EXPECT_EQ(error.rank(), world.rank() == 0 ? -1 : 0);
    EXPECT_EQ(error.cause(), world.rank() == 0 ? "" : "broken: offset 4");
  }
  EXPECT_EQ(turns, 2);
  world.barrier().wait();
}

}  // namespace
}  // namespace lockstep::testing
