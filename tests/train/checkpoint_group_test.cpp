#include "lockstep/distributed_optimizer.h"
#include "lockstep/fused_optimizers.h"
#include "lockstep/several_optimizers.h"
#include "lockstep/strategies.h"
#include "tests/groups.h"
#include "tests/matchers.h"
#include "tests/parallel/models.h"
#include "tests/train/average.h"
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

// Averages in checkpoints and on several ranks, and other objects of Checkpoint::extra.

TEST(MovingAverage, AResumedRunHasTheSameBits) {
  const TemporaryFolder folder;
  for (const bool bias_correction : {false, true}) {
    const MovingAverageOptions options{
        .decay = 0.9, .bias_correction = bias_correction, .average_buffers = true};
    for (const int saved : {0, 1, 3}) {
      Training whole(kinds[2]);
      MovingAverage average(*whole.model, options);
      const auto train = [](Training& training, MovingAverage& mean, int from, int to) {
        for (int step = from; step < to; ++step) {
          training.step(step);
          mean.update();
        }
      };
      train(whole, average, 0, saved);
      Checkpoint{.model = *whole.model, .optimizer = *whole.optimizer, .extra = {{"ema", average}}}
          .save(folder / "c");
      train(whole, average, saved, 6);

      Training again(kinds[2]);
      MovingAverage resumed(*again.model, options);
      train(again, resumed, 20, 22);
      Checkpoint{.model = *again.model, .optimizer = *again.optimizer, .extra = {{"ema", resumed}}}
          .load(folder / "c");
      EXPECT_EQ(resumed.updates(), saved);
      train(again, resumed, saved, 6);
      expect_same(again.values(), whole.values());
      expect_same(values_of(resumed, *again.model), values_of(average, *whole.model));
    }
  }
}

TEST(CheckpointExtra, MustBeInTheFileAndHaveAName) {
  const TemporaryFolder folder;
  Single model;
  MovingAverage average(model);
  MovingAverage second(model);
  const auto save = [&](const std::string& name) {
    Checkpoint{.model = model, .extra = {{name, average}}}.save(folder / "c");
  };
  const auto load = [&](const std::string& name) {
    Checkpoint{.model = model, .extra = {{name, average}}}.load(folder / "c");
  };
  for (const char* name : {"", "a/b"}) {
    EXPECT_THAT(failure([&] { save(name); }), HasSubstr("': expected a name without '/'"));
  }
  save("ema");
  load("ema");
  EXPECT_THAT(failure([&] { load("em"); }),
              HasSubstr("c: extra 'em': is in the program, but not in the file"));
  // A program without the object ignores it.
  Checkpoint{.model = model}.load(folder / "c");
  Checkpoint{.model = model}.save(folder / "c");
  EXPECT_THAT(failure([&] { load("ema"); }), HasSubstr("extra 'ema': is in the program"));
}

/// Trains on ranks and returns each rank's averaged and trained parameters. With a path, the run
/// saves a checkpoint in the middle and continues from it.
std::vector<std::vector<at::Tensor>> averages_of_ranks(int ranks, bool share_memory,
                                                       const std::filesystem::path& path = {}) {
  std::vector<std::vector<at::Tensor>> result(static_cast<std::size_t>(ranks));
  run_groups(ranks, [&](const Group& group) {
    at::set_num_threads(1);
    std::shared_ptr<Net> model;
    group.in_turn([&] {
      torch::manual_seed(5);
      model = std::make_shared<Net>(7);
    });
    FusedSgd sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    DistributedOptimizer optimizer(sgd, *model, group, {.share_memory = share_memory});
    MovingAverage average(*model, {.decay = 0.75});
    const Checkpoint checkpoint{
        .model = *model, .optimizer = sgd, .strategy = optimizer, .extra = {{"ema", average}}};
    for (int step = 0; step < 6; ++step) {
      if (step == 3 && !path.empty()) {
        checkpoint.save(path, {}, group);
        // load() must undo this step.
        optimizer.backward_and_update(model->forward(torch::ones({4, 4})).square().mean());
        average.update();
        checkpoint.load(path, group);
      }
      auto generator = at::make_generator<at::CPUGeneratorImpl>(
          static_cast<std::uint64_t>(step * ranks + group.rank()));
      const at::Tensor x = torch::randn({4, 4}, generator);
      optimizer.backward_and_update((model->forward(x) - 1).square().mean());
      average.update();
      if (step % 2 == 0) {
        // Other ranks train on in the memory of the parameters, or have not come so far.
        const at::NoGradGuard no_grad;
        const auto averaged = average.apply();
        const auto before = model->first->weight.clone();
        model->forward(x);
        EXPECT_TRUE(model->first->weight.equal(before));
      }
    }
    auto& own = result[static_cast<std::size_t>(group.rank())];
    {
      const auto averaged = average.apply();
      for (const auto& tensor : model->parameters()) own.push_back(tensor.detach().clone());
    }
    for (const auto& tensor : model->parameters()) own.push_back(tensor.detach().clone());
    group.barrier().wait();
  });
  return result;
}

class AverageOfRanks : public ::testing::TestWithParam<int> {};

TEST_P(AverageOfRanks, IsTheSameOnEveryRankAndAfterResuming) {
  const TemporaryFolder folder;
  std::vector<at::Tensor> of_replicas;
  for (const bool share_memory : {false, true}) {
    const auto expected = averages_of_ranks(GetParam(), share_memory);
    for (const auto& values : expected) expect_same(values, expected[0]);
    const auto resumed = averages_of_ranks(GetParam(), share_memory, folder / "c");
    for (const auto& values : resumed) expect_same(values, expected[0]);
    if (!share_memory) of_replicas = expected[0];
    for (std::size_t i = 0; i < of_replicas.size(); ++i)
      EXPECT_TRUE(of_replicas[i].allclose(expected[0][i], 1e-4, 1e-5)) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, AverageOfRanks, ::testing::Values(1, 2, 3));

// Checkpoints of one model that two optimizers train.

/// A rank's model, whose first layer Adam trains and whose last SGD.
struct TwoOptimizers {
  explicit TwoOptimizers(const Group& group) : world(group) { set_values(*model, 3); }

  void step(int number) {
    const auto x = random({4, 7}, static_cast<std::uint64_t>(10 * number + world.rank()));
    model->forward(x).square().mean().backward();
    for (auto* one : {&of_first, &of_last}) {
      one->step();
      one->zero_grad();
    }
  }
  Checkpoint checkpoint() {
    return {.model = *model, .optimizer = adam, .strategy = both, .extra = {{"last", further}}};
  }

  Group world;
  std::shared_ptr<Mlp> model = std::make_shared<Mlp>();
  torch::optim::Adam adam{model->layers[0]->parameters(), torch::optim::AdamOptions(0.01)};
  torch::optim::SGD sgd{std::vector<at::Tensor>{model->layers[1]->weight, model->layers[2]->weight},
                        torch::optim::SGDOptions(0.1).momentum(0.9)};
  DistributedOptimizer of_first{adam, *model, world, {.optimized_only = true}};
  DistributedOptimizer of_last{
      sgd, *model, world, {.strategy = TopK{.ratio = 0.3}, .optimized_only = true}};
  StatefulOptimizer further{sgd, *model};
  SeveralStateful both{std::vector<Stateful>{of_first, of_last}};
};

class SeveralOptimizersCheckpoint : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SeveralOptimizersCheckpoint, ::testing::Values(1, 2, 3));

TEST_P(SeveralOptimizersCheckpoint, GoesOnAsIfItHadNeverStopped) {
  const TemporaryFolder folder;
  on_ranks(GetParam(), [&](const Group& world) {
    TwoOptimizers whole(world);
    for (int number = 0; number < 3; ++number) whole.step(number);
    whole.checkpoint().save(folder / "c", {.epoch = 1}, world);
    TwoOptimizers fresh(world);
    fresh.step(9);
    EXPECT_EQ(fresh.checkpoint().load(folder / "c", world).changes, "");
    for (int number = 3; number < 6; ++number) {
      whole.step(number);
      fresh.step(number);
    }
    const auto expected = whole.model->parameters(), got = fresh.model->parameters();
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(got[i], expected[i]));
  });
}

TEST(SeveralOptimizersCheckpoints, OfAnotherOptimizerAreRefused) {
  const TemporaryFolder folder;
  on_ranks(2, [&](const Group& world) {
    TwoOptimizers saved(world);
    saved.step(0);
    saved.checkpoint().save(folder / "c", {}, world);
    TwoOptimizers loaded(world);
    torch::optim::RMSprop other(loaded.model->layers[1]->parameters());
    StatefulOptimizer further(other, *loaded.model);
    auto checkpoint = loaded.checkpoint();
    checkpoint.extra = {{"last", further}};
    const auto before = loaded.model->layers[0]->weight.detach().clone();
    EXPECT_THAT(failure([&] { checkpoint.load(folder / "c", world); }),
                HasSubstr("optimizer: expected torch::optim::RMSprop, found torch::optim::SGD"));
    EXPECT_TRUE(at::equal(loaded.model->layers[0]->weight, before));
    EXPECT_TRUE(loaded.adam.state().empty());
  });
}

TEST(SeveralOptimizersCheckpoints, RefuseAFurtherOptimizerInParts) {
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
  });
}

TEST(SeveralOptimizersCheckpoints, RefuseReplicasThatDiffer) {
  on_ranks(2, [&](const Group& world) {
    Mlp model;
    torch::optim::SGD sgd(model.parameters(), 0.1);
    DistributedOptimizer optimizer(sgd, model, world, LocalSgd{.period = 2});
    EXPECT_THROW(SeveralStateful({optimizer}), InvalidArgument);
  });
}

}  // namespace
}  // namespace lockstep::testing
