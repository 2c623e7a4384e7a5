#include "lockstep/fused_optimizers.h"
#include "lockstep/several_optimizers.h"
#include "lockstep/strategies.h"
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

// Averages in checkpoints and on several ranks, and other objects of Checkpoint::extra.

TEST(MovingAverage, AResumedRunHasTheSameBits) {
  const TemporaryFolder folder;
  for (const bool bias_correction : {false, true}) {
    const MovingAverageOptions options{
        .decay = 0.9, .bias_correction = bias_correction, .average_buffers = true};
    for (const int saved : {0, 1, 3}) {
      Training whole(kinds[2]), again(kinds[2]);
      MovingAverage average(*whole.model, options), resumed(*again.model, options);
      const auto train = [](Training& training, MovingAverage& mean, int from, int to) {
        for (int step = from; step < to; ++step) {
          training.step(step);
          mean.update();
        }
      };
      const auto checkpoint = [](const Training& of, MovingAverage& mean) {
        return Checkpoint{.model = *of.model, .optimizer = *of.optimizer, .extra = {{"ema", mean}}};
      };
      train(whole, average, 0, saved);
      checkpoint(whole, average).save(folder / "c");
      train(whole, average, saved, 6);
      train(again, resumed, 20, 22);
      checkpoint(again, resumed).load(folder / "c");
      EXPECT_EQ(resumed.updates(), saved);
      train(again, resumed, saved, 6);
      expect_equal_tensors(again.values(), whole.values());
      expect_equal_tensors(values_of(resumed, *again.model), values_of(average, *whole.model));
    }
  }
}

TEST(CheckpointExtra, MustBeInTheFileAndHaveAName) {
  const TemporaryFolder folder;
  Single model;
  MovingAverage average(model);
  const auto with = [&](const std::string& name) {
    return Checkpoint{.model = model, .extra = {{name, average}}};
  };
  for (const char* name : {"", "a/b"}) {
    EXPECT_THAT(failure([&] { with(name).save(folder / "c"); }),
                HasSubstr("': expected a name without '/'"));
  }
  with("ema").save(folder / "c");
  with("ema").load(folder / "c");
  EXPECT_THAT(failure([&] { with("em").load(folder / "c"); }),
              HasSubstr("c: extra 'em': is in the program, but not in the file"));
  Checkpoint{.model = model}.load(folder / "c");  // without the object, which is ignored
}

/// An object of a program that has no state before its first use.
struct Collected {
  State state() const { return values; }
  void load_state(const State& state) { values = state; }
  State values = {};
};

TEST(CheckpointExtra, MayHaveNoStateYet) {
  const TemporaryFolder folder;
  Single model;
  Collected sampler, own;
  const Checkpoint checkpoint{.model = model, .sampler = sampler, .extra = {{"own", own}}};
  checkpoint.save(folder / "c");
  checkpoint.load(folder / "c");
  EXPECT_TRUE(sampler.values.empty() && own.values.empty());
  own.values.emplace("a", at::ones({2}));
  EXPECT_THAT(failure([&] { checkpoint.load(folder / "c"); }),
              HasSubstr("c: extra 'own': is in the program, but not in the file"));
}

/// Trains on ranks and returns each rank's averaged and trained parameters.
std::vector<std::vector<at::Tensor>> averages_of_ranks(int ranks, bool share_memory) {
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
    for (int step = 0; step < 6; ++step) {
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
    const auto add_parameters = [&] {
      for (const auto& tensor : model->parameters()) own.push_back(tensor.detach().clone());
    };
    {
      const auto averaged = average.apply();
      add_parameters();
    }
    add_parameters();
    group.barrier().wait();
  });
  return result;
}

TEST(MovingAverage, IsTheSameOnEveryRankAlsoOfSharedMemory) {
  for (const int ranks : {1, 2, 3}) {
    std::vector<at::Tensor> of_replicas;
    for (const bool share_memory : {false, true}) {
      const auto of_ranks = averages_of_ranks(ranks, share_memory);
      for (const auto& values : of_ranks) expect_equal_tensors(values, of_ranks[0]);
      if (!share_memory) of_replicas = of_ranks[0];
      for (std::size_t i = 0; i < of_replicas.size(); ++i)
        EXPECT_TRUE(of_replicas[i].allclose(of_ranks[0][i], 1e-4, 1e-5)) << i;
    }
  }
}

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

SUITE_ON_RANKS(SeveralOptimizersCheckpoint, 1, 2, 3);

TEST_P(SeveralOptimizersCheckpoint, GoesOnAsIfItHadNeverStopped) {
  const TemporaryFolder folder;
  on_ranks(GetParam(), [&](const Group& world) {
    TwoOptimizers whole(world);
    for (int number = 0; number < 3; ++number) whole.step(number);
    whole.checkpoint().save(folder / "c", {.epoch = 1}, world);
    TwoOptimizers fresh(world);
    // With another optimizer, the load is refused and changes nothing.
    torch::optim::RMSprop other(fresh.model->layers[1]->parameters());
    StatefulOptimizer further(other, *fresh.model);
    auto checkpoint = fresh.checkpoint();
    checkpoint.extra = {{"last", further}};
    const auto before = fresh.model->layers[0]->weight.detach().clone();
    EXPECT_THAT(failure([&] { checkpoint.load(folder / "c", world); }),
                HasSubstr("optimizer: expected torch::optim::RMSprop, found torch::optim::SGD"));
    EXPECT_TRUE(at::equal(fresh.model->layers[0]->weight, before));
    EXPECT_TRUE(fresh.adam.state().empty());
    fresh.step(9);
    EXPECT_EQ(fresh.checkpoint().load(folder / "c", world).changes, "");
    for (int number = 3; number < 6; ++number) {
      whole.step(number);
      fresh.step(number);
    }
    expect_equal_models(*fresh.model, *whole.model);
  });
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

}  // namespace
}  // namespace lockstep::testing
