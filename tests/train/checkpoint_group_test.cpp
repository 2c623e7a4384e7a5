
#include <memory>
#include <string>
#include <vector>

#include "lockstep/checkpoint.h"
#include "tests/groups.h"
#include "tests/matchers.h"
#include "tests/temporary_folder.h"
#include "tests/train/checkpoint_failure.h"
#include "tests/train/training.h"

namespace lockstep::testing {
namespace {

class OverAGroup : public ::testing::TestWithParam<int> {};

TEST_P(OverAGroup, WhatFailsOnRank0FailsOnAll) {
  std::vector<std::unique_ptr<Training>> ranks;
  for (int rank = 0; rank < GetParam(); ++rank) ranks.push_back(std::make_unique<Training>());
  run_groups(GetParam(), [&](const Group& group) {
    Training& own = *ranks[static_cast<std::size_t>(group.rank())];
    const auto saving = failure(
        [&] { save_checkpoint("no/such/folder/c", *own.model, *own.optimizer, {}, group); });
    EXPECT_THAT(saving, HasSubstr("no/such/folder/c: cannot create the file: No such file"));
    const auto loading =
        failure([&] { load_checkpoint("no/such/c", *own.model, *own.optimizer, group); });
    EXPECT_THAT(loading, HasSubstr("no/such/c: cannot open: No such file"));
    const auto checking = failure([&] { check_checkpoint_path("/dev/null", group); });
    EXPECT_THAT(checking, HasSubstr("/dev/null: exists and is not a regular file"));
    if (group.rank() != 0) {
      EXPECT_THAT(saving, HasSubstr("rank 0: "));
    }
    group.barrier().wait();  // the group goes on
  });
}

TEST_P(OverAGroup, OneRankWithAnotherModelFailsOnAllAndChangesNone) {
  const TemporaryFolder folder;
  Training reference;
  reference.save(folder / "c");
  const int odd = GetParam() - 1;
  std::vector<std::unique_ptr<Training>> ranks;
  for (int rank = 0; rank < GetParam(); ++rank)
    ranks.push_back(std::make_unique<Training>(kinds[0], rank == odd ? 5 : 6));
  run_groups(GetParam(), [&](const Group& group) {
    Training& own = *ranks[static_cast<std::size_t>(group.rank())];
    const auto before = own.values();
    const auto text =
        failure([&] { load_checkpoint(folder / "c", *own.model, *own.optimizer, group); });
    EXPECT_THAT(text,
                HasSubstr("tensor 'first.weight': expected Float [5, 4], found Float [6, 4]"));
    if (group.rank() != odd) {
      EXPECT_THAT(text, HasSubstr("rank " + std::to_string(odd) + ": "));
    }
    expect_same(own.values(), before);
  });
}

TEST_P(OverAGroup, CheckingThePathLeavesNothingBehind) {
  const TemporaryFolder folder;
  run_groups(GetParam(), [&](const Group& group) { check_checkpoint_path(folder / "c", group); });
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

INSTANTIATE_TEST_SUITE_P(Ranks, OverAGroup, ::testing::Values(1, 2, 3, 7));

}  // namespace
}  // namespace lockstep::testing
