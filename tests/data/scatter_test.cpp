#include <torch/data/dataloader.h>
#include <torch/types.h>

#include <stdexcept>
#include <vector>

#include "comm/communicator.h"
#include "lockstep/error.h"
#include "lockstep/partition.h"
#include "lockstep/samplers.h"
#include "tests/groups.h"
#include "tests/matchers.h"
#include "tests/ranks.h"

namespace lockstep::testing {
namespace {

using Batch = torch::data::Example<>;
using Batches = std::vector<Batch>;

Batch batch_of(std::int64_t rows, at::ScalarType data, at::ScalarType target) {
  return {torch::arange(rows * 6).reshape({rows, 2, 3}).to(data), torch::arange(rows).to(target)};
}

/// Batches of all numbers of rows around that of the ranks, and of several dtypes.
Batches all_batches() {
  return {batch_of(8, at::kFloat, at::kLong), batch_of(1, at::kFloat, at::kLong),
          batch_of(0, at::kDouble, at::kInt), batch_of(7, at::kHalf, at::kBool),
          batch_of(20, at::kByte, at::kFloat)};
}

class Scatter : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Scatter, ::testing::Values(1, 2, 3, 4, 7));

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

TEST_P(Scatter, GivesEachRankItsRows) {
  run_groups(GetParam(), [](const Group& group) {
    expect_own_rows(group);
    expect_own_rows(group);
  });
}

TEST_P(Scatter, OfNothingIsNothing) {
  run_groups(GetParam(), [](const Group& group) {
    Batches nothing;
    for ([[maybe_unused]] const Batch& batch : scatter_from_rank0(&nothing, group)) ADD_FAILURE();
  });
}

TEST_P(Scatter, KeepsEarlierBatchesAsTheyWere) {
  run_groups(GetParam(), [](const Group& group) {
    Batches source{{torch::full({8, 1}, 1.0), torch::ones({8})},
                   {torch::full({8, 1}, 2.0), torch::ones({8})}};
    Batches kept;
    for (const Batch& batch : scatter_from_rank0(&source, group)) kept.push_back(batch);
    ASSERT_EQ(kept.size(), 2u);
    EXPECT_TRUE(kept[0].data.eq(1).all().item<bool>());
    EXPECT_TRUE(kept[1].data.eq(2).all().item<bool>());
  });
}

template <class Thrown>
void expect_failure(int ranks, const Batches& source, const std::string& said) {
  run_groups(ranks, [&](const Group& group) {
    Batches own = source;
    int turns = 0;
    try {
      for ([[maybe_unused]] const Batch& batch : scatter_from_rank0(&own, group)) ++turns;
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(said));
      if (group.rank() == 0) {
        EXPECT_NE(dynamic_cast<const Thrown*>(&error), nullptr);
      } else {
        EXPECT_NE(dynamic_cast<const DataError*>(&error), nullptr);
        EXPECT_THAT(error.what(), HasSubstr("rank 0: "));
      }
    }
    EXPECT_EQ(turns, static_cast<int>(source.size()) - 1);
    expect_own_rows(group);
  });
}

TEST_P(Scatter, WhatRank0CannotDealIsSaidOnEveryRank) {
  const Batch sound = batch_of(8, at::kFloat, at::kLong);
  expect_failure<InvalidArgument>(GetParam(), {sound, {torch::zeros({3, 2}), torch::zeros({2})}},
                                  "got 3 rows of data and 2 of target");
  expect_failure<InvalidArgument>(GetParam(), {{torch::zeros({3}), torch::zeros({})}},
                                  "got target of 0 dimensions");
  expect_failure<InvalidArgument>(GetParam(), {sound, sound, {torch::zeros({3}), {}}},
                                  "got target of 0 dimensions");
}

TEST_P(Scatter, WhatCannotBeCopiedIsSaidOnEveryRank) {
  run_groups(GetParam(), [](const Group& group) {
    Batches sparse{{torch::eye(6).to_sparse(), torch::arange(6)}};
    const auto scatter = [&] {
      for ([[maybe_unused]] const Batch& batch : scatter_from_rank0(&sparse, group)) ADD_FAILURE();
    };
    EXPECT_THROW(scatter(), std::exception);
    expect_own_rows(group);
  });
}

class Broken : public torch::data::datasets::BatchDataset<Broken, Batch> {
 public:
  Batch get_batch(c10::ArrayRef<std::size_t> indices) override {
    if (indices.front() >= 4) throw DataError("broken: offset 4");
    return batch_of(static_cast<std::int64_t>(indices.size()), at::kFloat, at::kLong);
  }
  std::optional<std::size_t> size() const override { return 8; }
};

TEST_P(Scatter, ALoadersErrorIsSaidOnEveryRank) {
  run_groups(GetParam(), [](const Group& group) {
    auto loader = torch::data::make_data_loader(
        Broken(), DistributedSampler(8, ShardSpec{}, {.shuffle = false}), 2);
    int turns = 0;
    try {
      for ([[maybe_unused]] const Batch& batch : scatter_from_rank0(loader.get(), group)) ++turns;
      ADD_FAILURE();
    } catch (const DataError& error) {
      EXPECT_STREQ(error.what(),
                   group.rank() == 0 ? "broken: offset 4" : "rank 0: broken: offset 4");
      EXPECT_EQ(error.rank(), group.rank() == 0 ? -1 : 0);
      EXPECT_EQ(error.cause(), group.rank() == 0 ? "" : "broken: offset 4");
    }
    EXPECT_EQ(turns, 2);
    group.barrier().wait();
  });
}

TEST_P(Scatter, Rank0NeedsALoader) {
  run_groups(GetParam(), [](const Group& group) {
    Batches* const none = nullptr;
    EXPECT_THROW(
        {
          for ([[maybe_unused]] const Batch& batch : scatter_from_rank0(none, group)) {
          }
        },
        Error);
    group.barrier().wait();
  });
}

const ProcessBody processes("scatter", [](std::shared_ptr<Communicator> communicator) {
  expect_own_rows(Group(std::move(communicator)));
  if (::testing::Test::HasFailure()) throw std::runtime_error("wrong rows");
});

TEST(ScatterOfProcesses, GivesEachRankItsRows) { expect_processes(3, "scatter"); }

}  // namespace
}  // namespace lockstep::testing
