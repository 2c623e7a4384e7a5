// One copy of the parameters for all ranks, of which each updates a part: the same numbers, bit for
// bit, as when every rank updates its own.
#include "parallel/shared_update.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/flight_record.h"
#include "lockstep/checkpoint.h"
#include "lockstep/distributed_data_parallel.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/fused_optimizers.h"
#include "tests/parallel/mixed_training.h"
#include "tests/parallel/refusal.h"
#include "tests/temporary_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

const DataParallelOptions shared{.share_memory = true};

template <class Fused, class Options>
Make fused(const Options& options) {
  return [options](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<Fused>(parameters, options);
  };
}

Make fused(const SGDOptions& options) { return fused<FusedSgd>(options); }

/// Parameters and optimizer state.
std::vector<at::Tensor> all_of(Trained& trained) {
  std::vector<at::Tensor> tensors = trained.model.parameters();
  for (const auto& parameter : trained.model.parameters()) {
    for (const at::Tensor* state :
         dynamic_cast<ElementwiseOptimizer&>(*trained.base).state_of(parameter)) {
      if (state->defined()) tensors.push_back(*state);
    }
  }
  return tensors;
}

void expect_equal(Trained& got, Trained& expected) {
  const auto ours = all_of(got);
  const auto theirs = all_of(expected);
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(torch::equal(ours[i], theirs[i])) << i;
    EXPECT_EQ(ours[i].strides(), theirs[i].strides()) << i;
  }
}

class SharedUpdate : public ::testing::TestWithParam<int> {};

TEST_P(SharedUpdate, TakesTheSameStepsAsUpdatesOfEveryRank) {
  on_ranks(GetParam(), [](const Group& world) {
    for (const auto& make :
         {fused(SGDOptions(0.1)), fused(SGDOptions(0.1).momentum(0.9).weight_decay(0.01)),
          fused(SGDOptions(0.1).momentum(0.9).nesterov(true)),
          fused<FusedAdam>(AdamOptions(0.01).weight_decay(0.01)),
          fused<FusedAdamW>(AdamWOptions(0.01).amsgrad(true))}) {
      Trained one_copy(world, make, shared);
      Trained each_its_own(world, make, {});
      for (int step = 0; step < 15; ++step) {
        if (step == 5) {
          for (auto* trained : {&one_copy, &each_its_own}) {
            trained->base->param_groups()[0].options().set_lr(0.02);
          }
        }
        one_copy.step(world, step);
        each_its_own.step(world, step);
        // A rank that is ahead must not update parameters that other ranks still compare.
        world.barrier().wait();
        expect_equal(one_copy, each_its_own);
        world.barrier().wait();
      }
    }
  });
}

/// Training steps in the flight record of this rank.
std::uint64_t steps_of(const Group& world) {
  std::uint64_t steps = 0;
  for (const auto& record : detail::read_flight_records()) {
    if (record->file().pid != ::getpid() || record->rank() != world.rank()) continue;
    if (record->size() == world.size()) steps = std::max(steps, record->step());
  }
  return steps;
}

TEST_P(SharedUpdate, CountsItsSteps) {
  on_ranks(GetParam(), [](const Group& world) {
    Trained trained(world, fused(SGDOptions(0.1)), shared);
    const auto before = steps_of(world);
    trained.optimizer.backward_and_update(trained.model.loss(world, 0));
    EXPECT_EQ(steps_of(world), before + 1);
    trained.model.loss(world, 1).backward();
    trained.optimizer.step();
    EXPECT_EQ(steps_of(world), before + 2);
    world.barrier().wait();
  });
}

TEST_P(SharedUpdate, KeepsOneCopyUntilItEnds) {
  on_ranks(GetParam(), [](const Group& world) {
    auto trained = std::make_unique<Trained>(world, fused(SGDOptions(0.1).momentum(0.9)), shared);
    trained->step(world, 0);
    world.barrier().wait();
    if (world.rank() == 0) {
      const torch::NoGradGuard no_grad;
      trained->model.doubles.fill_(3);
      trained->model.frozen.fill_(4);
    }
    world.barrier().wait();
    EXPECT_EQ(trained->model.doubles.detach().sum().item<double>(), 3 * 37);
    EXPECT_EQ(trained->model.frozen.sum().item<double>() == 20, world.rank() == 0);
    world.barrier().wait();

    // Rank 0, in whose memory it lies, lets go of it first, and fills what it gets then.
    Mixed model;
    FusedSgd sgd(Trained::with_values(model, world), SGDOptions(0.1));
    auto optimizer = std::make_unique<DistributedOptimizer>(sgd, model, world, shared);
    const auto before = model.mlp->layers[0]->weight.detach().clone();
    world.barrier().wait();
    std::vector<at::Tensor> others;
    if (world.rank() == 0) {
      optimizer.reset();
      for (int i = 0; i < 50; ++i) others.push_back(world.empty({1000}).fill_(-1));
    }
    world.barrier().wait();
    EXPECT_TRUE(torch::equal(model.mlp->layers[0]->weight.detach(), before));
    optimizer.reset();
    EXPECT_TRUE(torch::equal(model.mlp->layers[0]->weight.detach(), before));
    {
      const torch::NoGradGuard no_grad;
      model.doubles.fill_(world.rank());
    }
    world.barrier().wait();
    EXPECT_EQ(model.doubles.detach().sum().item<double>(), 37 * world.rank());
  });
}

/// A checkpoint after three steps of ranks that share the update, with three more from it.
void go_on_from_a_checkpoint(int ranks, const Make& make) {
  const TemporaryFolder folder;
  on_ranks(ranks, [&](const Group& world) {
    Trained undisturbed(world, make, shared);
    for (int step = 0; step < 3; ++step) undisturbed.step(world, step);
    const auto file = folder.path() / "half";
    Checkpoint{.model = undisturbed.model, .optimizer = *undisturbed.base}.save(file, {}, world);
    Trained resumed(world, make, shared);
    resumed.step(world, 7);  // it remembers something else
    Checkpoint{.model = resumed.model, .optimizer = *resumed.base}.load(file, world);
    for (int step = 3; step < 6; ++step) {
      undisturbed.step(world, step);
      resumed.step(world, step);
    }
    expect_equal(resumed, undisturbed);
    world.barrier().wait();
  });
}

TEST_P(SharedUpdate, GoesOnFromACheckpoint) {
  go_on_from_a_checkpoint(GetParam(), fused(SGDOptions(0.1).momentum(0.9)));
}

TEST_P(SharedUpdate, OfAdamGoesOnFromACheckpoint) {
  go_on_from_a_checkpoint(GetParam(), fused<FusedAdamW>(AdamWOptions(0.01)));
}

INSTANTIATE_TEST_SUITE_P(Ranks, SharedUpdate, ::testing::Values(1, 2, 3, 4, 7));

TEST(SharedUpdateStart, RefusesWhatItCannotDo) {
  on_ranks(2, [](const Group& world) {
    const auto says = [&](const auto& fn, const char* what) {
      EXPECT_THAT(refusal(fn), HasSubstr(what));
      expect_usable(world);
    };
    Mlp model;
    FusedSgd fused(model.parameters(), SGDOptions(0.1));
    torch::optim::SGD plain(model.parameters(), SGDOptions(0.1));
    says([&] { DistributedOptimizer(plain, model, world, shared); },
         "share_memory: got an optimizer that updates whole tensors, expected an "
         "ElementwiseOptimizer such as FusedSgd or FusedAdam");
    const DataParallelOptions halves{.strategy = parse_strategy("fp16"), .share_memory = true};
    says([&] { DistributedOptimizer(fused, model, world, halves); },
         "share_memory: got strategy fp16, expected fp32");
    says([&] { DistributedDataParallel(std::make_shared<Mlp>(), world, shared); },
         "use DistributedOptimizer");
    {
      const auto alias = model.layers[1]->weight.detach();
      says([&] { DistributedOptimizer(fused, model, world, shared); },
           "parameter layer1.weight shares its memory with another tensor");
    }
    DataParallelOptions by_one = shared;
    by_one.share_memory = world.rank() == 0;
    says([&] { DistributedOptimizer(fused, model, world, by_one); }, "share_memory");
  });
}

TEST(SharedUpdateStep, RefusesAParameterWithOtherMemory) {
  on_ranks(2, [](const Group& world) {
    Mlp model;
    FusedSgd sgd(model.parameters(), SGDOptions(0.1));
    DistributedOptimizer optimizer(sgd, model, world, shared);
    auto& bias = model.layers[2]->bias;
    bias.set_data(bias.detach().clone());
    EXPECT_THAT(refusal([&] {
                  optimizer.backward_and_update(model.forward(at::ones({1, 7})).sum());
                }),
                HasSubstr("parameter layer2.bias was moved to other memory"));
    expect_usable(world);
  });
}

}  // namespace
}  // namespace lockstep::testing
