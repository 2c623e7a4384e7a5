// Checkpoints of one model that two optimizers train.
#include <torch/nn.h>
#include <torch/optim.h>

#include <memory>
#include <vector>

#include "lockstep/checkpoint.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/init.h"
#include "lockstep/several_optimizers.h"
#include "lockstep/strategies.h"
#include "tests/matchers.h"
#include "tests/parallel/models.h"
#include "tests/temporary_folder.h"
#include "tests/train/checkpoint_failure.h"

namespace lockstep::testing {
namespace {

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
