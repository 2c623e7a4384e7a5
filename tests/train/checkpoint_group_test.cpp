#include "lockstep/fused_optimizers.h"
#include "lockstep/metrics.h"
#include "lockstep/several_optimizers.h"
#include "lockstep/strategies.h"
#include "lockstep/uneven_inputs.h"
#include "tests/groups.h"
#include "tests/parallel/models.h"
#include "tests/train/training.h"

namespace lockstep::testing {
namespace {

SUITE_ON_RANKS(OverAGroup, 1, 2, 3, 7);

TEST_P(OverAGroup, WhatFailsOnOneRankFailsOnAllAndChangesNone) {
  const TemporaryFolder folder;
  Training().save(folder / "saved");
  const int odd = GetParam() - 1;
  run_groups(GetParam(), [&](const Group& group) {
    Training own, other(kinds[0], group.rank() == odd ? 5 : 6);
    const auto saving = failure(
        [&] { save_checkpoint("no/such/folder/c", *own.model, *own.optimizer, {}, group); });
    EXPECT_THAT(saving,
                HasSubstr("no/such/folder/c: cannot create the file: No such file or directory; "
                          "create the folder no/such/folder"));
    const auto loading =
        failure([&] { load_checkpoint("no/such/c", *own.model, *own.optimizer, group); });
    EXPECT_THAT(loading, HasSubstr("no/such/c: cannot open: No such file"));
    const auto checking = failure([&] { check_checkpoint_path("/dev/null", group); });
    EXPECT_THAT(checking, HasSubstr("/dev/null: exists and is not a regular file"));
    if (group.rank() != 0) {
      EXPECT_THAT(saving, HasSubstr("rank 0: "));
    }
    check_checkpoint_path(folder / "c", group);  // the group goes on
    // One rank has another model.
    const auto before = other.values();
    const auto text =
        failure([&] { load_checkpoint(folder / "saved", *other.model, *other.optimizer, group); });
    EXPECT_THAT(text,
                HasSubstr("tensor 'first.weight': expected Float [5, 4], found Float [6, 4]"));
    if (group.rank() != odd) {
      EXPECT_THAT(text, HasSubstr("rank " + std::to_string(odd) + ": "));
    }
    expect_equal_tensors(other.values(), before);
  });
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1)
      << "a check leaves nothing behind";
}

// Objects of Checkpoint::extra.

/// An object of a program that has no state before its first use.
struct Collected {
  State state() const { return values; }
  void load_state(const State& state) { values = state; }
  State values = {};
};

TEST(CheckpointExtra, HasANameAndIsInTheFileUnlessItHasNoStateYet) {
  const TemporaryFolder folder;
  Single model;
  Collected sampler, own;
  const auto with = [&](const std::string& name) {
    return Checkpoint{.model = model, .sampler = sampler, .extra = {{name, own}}};
  };
  with("own").save(folder / "c");
  with("own").load(folder / "c");
  EXPECT_TRUE(sampler.values.empty() && own.values.empty());
  own.values.emplace("a", at::ones({2}));
  for (const char* name : {"", "a/b"}) {
    EXPECT_THAT(failure([&] { with(name).save(folder / "d"); }),
                HasSubstr("': expected a name without '/'"));
  }
  EXPECT_THAT(failure([&] { with("own").load(folder / "c"); }),
              HasSubstr("c: extra 'own': is in the program, but not in the file"));
  with("own").save(folder / "c");
  Checkpoint{.model = model}.load(folder / "c");  // without the object, which is ignored
}

/// Trains and returns the averaged and the trained parameters.
std::vector<at::Tensor> averaged_training(const Group& group, bool share_memory) {
  Net model(7);
  set_values(model, 5);
  FusedSgd sgd(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  DistributedOptimizer optimizer(sgd, model, group, {.share_memory = share_memory});
  MovingAverage average(model, {.decay = 0.75});
  for (int step = 0; step < 6; ++step) {
    const auto x = random({4, 4}, static_cast<std::uint64_t>(step * group.size() + group.rank()));
    optimizer.backward_and_update((model.forward(x) - 1).square().mean());
    average.update();
    if (step % 2 == 0) {
      // Other ranks train on in the memory of the parameters, or have not come so far.
      const at::NoGradGuard no_grad;
      const auto averaged = average.apply();
      const auto before = model.first->weight.clone();
      model.forward(x);
      EXPECT_TRUE(model.first->weight.equal(before));
    }
  }
  std::vector<at::Tensor> result;
  {
    const auto averaged = average.apply();
    result = copies_of(model.parameters());
  }
  for (const auto& tensor : copies_of(model.parameters())) result.push_back(tensor);
  group.barrier().wait();
  return result;
}

TEST_ON_RANKS(MovingAverage, IsTheSameOnEveryRankAlsoOfSharedMemory, 1, 2, 3) {
  const auto of_replica = averaged_training(world, false);
  const auto of_shared = averaged_training(world, true);
  for (std::size_t i = 0; i < of_replica.size(); ++i) {
    EXPECT_TRUE(same_on_all_ranks(of_replica[i], world)) << i;
    EXPECT_TRUE(same_on_all_ranks(of_shared[i], world)) << i;
    EXPECT_TRUE(of_replica[i].allclose(of_shared[i], 1e-4, 1e-5)) << i;
  }
}

TEST(SeveralOptimizersCheckpoints, RefuseAFurtherOptimizerInPartsAndReplicasThatDiffer) {
  const TemporaryFolder folder;
  on_ranks(2, [&](const Group& world) {
    Mlp model;
    torch::optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    DistributedOptimizer optimizer(sgd, model, world, {.shard = Shard::optimizer});
    StatefulOptimizer further(sgd, model);
    const Checkpoint checkpoint{.model = model, .extra = {{"further", further}}};
    EXPECT_THAT(failure([&] { checkpoint.save(folder / "c", {}, world); }),
                HasSubstr("shard divides among ranks, expected one with a whole state"));
    world.barrier().wait();
    Mlp replica;
    torch::optim::SGD plain(replica.parameters(), 0.1);
    DistributedOptimizer local(plain, replica, world, LocalSgd{.period = 2});
    EXPECT_THROW(SeveralStateful({local}), InvalidArgument);
  });
}

// Errors name what the program called, where the library issued the collective.

using Call = std::function<void(const Group&)>;

std::string error_of(const Call& of_rank_0, const Call& of_rank_1) {
  return message_of<CommError>([&] {
    spawn(2, [&](const Group& group) { (group.rank() == 0 ? of_rank_0 : of_rank_1)(group); });
  });
}

void save_linear(const Group& group) {
  torch::nn::Linear model(1, 1);
  Checkpoint{.model = model}.save("collective_names.safetensors", {}, group);
}

TEST(CollectiveNames, AreInErrorsOfOperationsThatDifferAndOfARankThatLeft) {
  const Call combine = [](const Group& group) { compute(group, Sum()); };
  const Call condition = [](const Group& group) { group.any(false); };
  const Call check = [](const Group& group) { all_or_none(group, [] {}); };
  const Call next = [](const Group& group) {
    std::vector<int> batches(1);
    for (const int batch : join_uneven(batches, group)) static_cast<void>(batch);
  };
  const auto expect = [](const Call& of_rank_0, std::string_view name_0, const Call& of_rank_1,
                         std::string_view name_1) {
    EXPECT_THAT(error_of(of_rank_0, of_rank_1),
                AllOf(HasSubstr(" for " + std::string(name_0) + " as on rank 0"),
                      HasSubstr(" for " + std::string(name_1) + ", expected")));
  };
  expect(combine, "the metrics", condition, "Group::mean(), any() or all()");
  expect(condition, "Group::mean(), any() or all()", combine, "the metrics");
  expect(save_linear, "a checkpoint", check, "all_or_none()");
  expect(next, "join_uneven()", save_linear, "a checkpoint");
  EXPECT_THAT(error_of(save_linear, [](const Group&) {}),
              HasSubstr("rank 1 left the world (returned) before all_gather #1 (a checkpoint); "
                        "end loops on all ranks together: reduce their condition over"));
}

}  // namespace
}  // namespace lockstep::testing
