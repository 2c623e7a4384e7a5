// Optimizer state that is divided among the ranks: the same numbers, bit for bit, as when every
// rank has all of it.
#include "parallel/update/sharded_update.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/checkpoint.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/error.h"
#include "lockstep/fused_optimizers.h"
#include "lockstep/model_files.h"
#include "tests/parallel/elementwise_optimizers.h"
#include "tests/parallel/refusal.h"
#include "tests/temporary_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;
using torch::optim::SGDOptions;

const DataParallelOptions state_in_parts{.shard = Shard::optimizer};

void expect_equal_models(const Mixed& got, const Mixed& expected) {
  const auto ours = got.parameters();
  const auto theirs = expected.parameters();
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(torch::equal(ours[i], theirs[i])) << i;
    EXPECT_EQ(ours[i].strides(), theirs[i].strides()) << i;
  }
}

class ShardedOptimizer : public ::testing::TestWithParam<int> {};

TEST_P(ShardedOptimizer, TakesTheStepsOfAnUnshardedOneAndSavesTheSameFile) {
  const TemporaryFolder folder;
  on_ranks(GetParam(), [&](const Group& world) {
    for (const auto& [name, make] : every_optimizer) {
      SCOPED_TRACE(name);
      Trained in_parts(world, make, state_in_parts);
      Trained whole(world, make, {});
      for (int step = 0; step < 15; ++step) {
        if (step == 5) {
          for (auto* trained : {&in_parts, &whole})
            trained->base->param_groups()[0].options().set_lr(0.02);
        }
        if (step == 9) {  // frozen after a while
          for (auto* trained : {&in_parts, &whole})
            trained->model.mlp->layers[1]->bias.requires_grad_(false);
        }
        in_parts.step(world, step);
        whole.step(world, step);
        expect_equal_models(in_parts.model, whole.model);
      }
      EXPECT_TRUE(file_of(in_parts, world, folder / "parts") ==
                  file_of(whole, world, folder / "whole"));
    }
  });
}

TEST_P(ShardedOptimizer, KeepsStateOfItsPartsOnly) {
  on_ranks(GetParam(), [&](const Group& world) {
    Mlp model({7, 61, 33, 3});
    set_values(model, 0);
    torch::optim::AdamW adam(model.parameters(), AdamWOptions(0.01));
    DistributedOptimizer optimizer(adam, model, world, state_in_parts);
    optimizer.backward_and_update(model.forward(at::ones({1, 7})).sum());
    std::int64_t elements = 0;
    for (const auto& [parameter, state] : adam.state())
      elements += static_cast<torch::optim::AdamWParamState&>(*state).exp_avg().numel();
    std::int64_t all = 0;
    for (const auto& parameter : model.parameters()) all += parameter.numel();
    // A part is rounded up to cache lines, and parameters begin at cache lines.
    EXPECT_LE(elements, all / world.size() + 16 * 7);
    auto sum = torch::tensor(elements);
    world.all_reduce(sum).wait();
    EXPECT_EQ(sum.item<std::int64_t>(), all);
  });
}

TEST_P(ShardedOptimizer, GoesOnFromACheckpointBitForBit) {
  const TemporaryFolder folder;
  on_ranks(GetParam(), [&](const Group& world) {
    for (const auto& [name, make] : every_optimizer) {
      SCOPED_TRACE(name);
      Trained undisturbed(world, make, state_in_parts);
      for (int step = 0; step < 3; ++step) undisturbed.step(world, step);
      const auto file = folder / name;
      Checkpoint{.model = undisturbed.model, .optimizer = *undisturbed.base}.save(file, {}, world);
      Trained resumed(world, make, state_in_parts);
      resumed.step(world, 7);  // it remembers something else
      Checkpoint{.model = resumed.model, .optimizer = *resumed.base}.load(file, world);
      Trained whole(world, make, {});
      Checkpoint{.model = whole.model, .optimizer = *whole.base}.load(file, world);
      for (int step = 3; step < 6; ++step) {
        undisturbed.step(world, step);
        resumed.step(world, step);
        whole.step(world, step);
      }
      expect_equal_models(resumed.model, undisturbed.model);
      const auto saved = file_of(resumed, world, folder / "resumed");
      EXPECT_TRUE(saved == file_of(undisturbed, world, folder / "undisturbed"));
      // A loaded state is contiguous, which the fused kernels do not accept for every parameter.
      if (std::string(name).starts_with("Fused")) continue;
      expect_equal_models(whole.model, undisturbed.model);
      EXPECT_TRUE(saved == file_of(whole, world, folder / "whole"));
    }
  });
}

TEST_P(ShardedOptimizer, TakesTheStateThatTheOptimizerHas) {
  const TemporaryFolder folder;
  on_ranks(GetParam(), [&](const Group& world) {
    for (const auto& [name, make] : every_optimizer) {
      SCOPED_TRACE(name);
      Trained saved(world, make, state_in_parts);
      saved.step(world, 0);
      Checkpoint{.model = saved.model, .optimizer = *saved.base}.save(folder / name, {}, world);
      Mixed model;
      const auto base = make(Trained::with_values(model, world));
      Checkpoint{.model = model, .optimizer = *base}.load(folder / name, world);
      DistributedOptimizer optimizer(*base, model, world, state_in_parts);
      optimizer.backward_and_update(model.loss(world, 7));
      saved.optimizer.backward_and_update(saved.model.loss(world, 7));
      expect_equal_models(model, saved.model);
    }
  });
}

/// The steps of two models from the same values, one with state in parts, must be equal.
void expect_steps_as_whole(const Group& world,
                           const std::function<void(Mixed&, DistributedOptimizer&, int)>& step) {
  Trained in_parts(world, every_optimizer[2].second, state_in_parts);
  Trained whole(world, every_optimizer[2].second, {});
  for (int i = 0; i < 4; ++i) {
    for (auto* trained : {&in_parts, &whole}) step(trained->model, trained->optimizer, i);
    expect_equal_models(in_parts.model, whole.model);
  }
}

TEST_P(ShardedOptimizer, IsJoinedByARankThatOnlyCallsStep) {
  on_ranks(GetParam(), [](const Group& world) {
    expect_steps_as_whole(world, [&](Mixed& model, DistributedOptimizer& optimizer, int step) {
      if (world.size() > 1 && world.rank() == step % world.size()) {
        optimizer.step();
        optimizer.zero_grad();
      } else {
        optimizer.backward_and_update(model.loss(world, step));
      }
    });
  });
}

// The gradient by hand is found in step(), after the parts of the others have been averaged.
TEST_P(ShardedOptimizer, KeepsItsPartsWhileAGradientByHandIsAveraged) {
  on_ranks(GetParam(), [](const Group& world) {
    expect_steps_as_whole(world, [&](Mixed& model, DistributedOptimizer& optimizer, int step) {
      if (world.rank() == 0) model.unused.mutable_grad() = at::full_like(model.unused, step);
      optimizer.backward_and_update(model.loss(world, step));
    });
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShardedOptimizer, ::testing::Values(1, 2, 3, 4, 7));

TEST(ShardedCheckpoint, IsReadByAnyNumberOfRanks) {
  const TemporaryFolder folder;
  const auto& make = every_optimizer[2].second;
  const auto train = [&](int ranks, int steps, const DataParallelOptions& how, const char* from,
                         const char* to) {
    on_ranks(ranks, [&](const Group& world) {
      Trained trained(world, make, how);
      const Checkpoint checkpoint{.model = trained.model, .optimizer = *trained.base};
      if (from != nullptr) checkpoint.load(folder / from, world);
      for (int step = 0; step < steps; ++step)
        trained.optimizer.backward_and_update(trained.model.loss(world, step));
      checkpoint.save(folder / to, {}, world);
    });
  };
  train(3, 4, state_in_parts, nullptr, "of_three");
  for (const int ranks : {1, 2, 4, 7}) {
    train(ranks, 3, state_in_parts, "of_three", "sharded");
    train(ranks, 3, {}, "of_three", "whole");
    const auto parts = safetensors::read(folder / "sharded");
    const auto whole = safetensors::read(folder / "whole");
    ASSERT_EQ(parts.tensors.size(), whole.tensors.size());
    EXPECT_GT(parts.tensors.size(), 20);
    for (const auto& [name, tensor] : parts.tensors)
      EXPECT_TRUE(torch::equal(tensor, whole.tensors.at(name))) << name;
    EXPECT_EQ(parts.metadata.at("optimizer"), whole.metadata.at("optimizer"));
  }
}

TEST(ShardedCheckpoint, IsWrittenBehindTheTraining) {
  const TemporaryFolder folder;
  on_ranks(3, [&](const Group& world) {
    Trained trained(world, every_optimizer[1].second, state_in_parts);
    CheckpointWriter writer(world);
    const Checkpoint checkpoint{.model = trained.model, .optimizer = *trained.base};
    writer.prepare(checkpoint);
    for (int step = 0; step < 2; ++step) {
      trained.step(world, step);
      checkpoint.save(folder / "now", {}, world);
      writer.save(checkpoint, folder / "behind");
      writer.wait();
      if (world.rank() != 0) continue;
      const auto now = safetensors::read(folder / "now");
      const auto behind = safetensors::read(folder / "behind");
      for (const auto& [name, tensor] : now.tensors)
        EXPECT_TRUE(torch::equal(tensor, behind.tensors.at(name))) << name;
      EXPECT_EQ(now.metadata.at("optimizer"), behind.metadata.at("optimizer"));
    }
  });
}

TEST(ShardedCheckpoint, NeedsTheGroup) {
  const TemporaryFolder folder;
  on_ranks(2, [&](const Group& world) {
    Trained trained(world, every_optimizer[1].second, state_in_parts);
    trained.step(world, 0);
    const Checkpoint checkpoint{.model = trained.model, .optimizer = *trained.base};
    const auto says = [&](const auto& fn, const char* what) {
      try {
        fn();
        ADD_FAILURE() << "expected: " << what;
      } catch (const CheckpointError& error) {
        EXPECT_THAT(error.what(), HasSubstr(what));
      }
    };
    says([&] { checkpoint.save(folder / "alone"); }, "its state is divided among 2 ranks");
    const auto alone = world.split(world.rank());
    says([&] { checkpoint.save(folder / "alone", {}, alone); },
         "got a group of 1 ranks, expected the 2 ranks that share its state");
    says([&] { (void)state_dict(*trained.base); }, "its state is divided among 2 ranks");
    EXPECT_FALSE(std::filesystem::exists(folder / "alone"));
    expect_usable(world);
  });
}

TEST(ShardedOptimizerStart, RefusesWhatItCannotDo) {
  on_ranks(2, [](const Group& world) {
    const auto says = [&](const auto& fn, const char* what) {
      EXPECT_THAT(refusal(fn), HasSubstr(what));
      expect_usable(world);
    };
    Mlp model;
    torch::optim::SGD sgd(model.parameters(), SGDOptions(0.1));
    torch::optim::LBFGS lbfgs(model.parameters());
    says([&] { DistributedOptimizer(lbfgs, model, world, state_in_parts); },
         "shard: got torch::optim::LBFGS, expected an optimizer that updates each element by "
         "itself: SGD, Adam, AdamW, RMSprop or Adagrad");
    const DataParallelOptions local{.strategy = parse_strategy("local_sgd:period=4"),
                                    .shard = Shard::optimizer};
    says([&] { DistributedOptimizer(sgd, model, world, local); },
         "which does not average every gradient at every step");
    const DataParallelOptions both{.shard = Shard::gradients, .share_memory = true};
    FusedSgd fused(model.parameters(), SGDOptions(0.1));
    says([&] { DistributedOptimizer(fused, model, world, both); },
         "share_memory: got shard = Shard::gradients");
    {
      const auto alias = model.layers[1]->weight.detach();
      says([&] { DistributedOptimizer(sgd, model, world, state_in_parts); },
           "parameter layer1.weight shares its memory with another tensor");
    }
    DataParallelOptions by_one;
    by_one.shard = world.rank() == 0 ? Shard::optimizer : Shard::none;
    says([&] { DistributedOptimizer(sgd, model, world, by_one); }, "shard optimizer");
  });
}

std::uint64_t bytes_of(const Group& world, Collective collective) {
  std::uint64_t bytes = 0;
  for (const auto& row : world.statistics()) {
    if (row.collective == collective && row.bucket >= 0) bytes += row.bytes;
  }
  return bytes;
}

// A reduce-scatter sends half as much as an all_reduce.
TEST(ShardedOptimizerStep, AveragesPartsOnlyIfTheUpdateFollowsAtOnce) {
  on_ranks(4, [](const Group& world) {
    Mlp model({7, 61, 33, 3});
    torch::optim::SGD sgd(model.parameters(), SGDOptions(0.1));
    DistributedOptimizer optimizer(sgd, model, world, state_in_parts);
    const auto loss = [&] { return model.forward(at::ones({1, 7})).sum(); };
    optimizer.backward_and_update(loss());
    EXPECT_EQ(bytes_of(world, Collective::all_reduce), 0);
    EXPECT_GT(bytes_of(world, Collective::reduce_scatter), 0);
    loss().backward();
    EXPECT_GT(bytes_of(world, Collective::all_reduce), 0);
    const auto& gradient = model.layers[0]->bias.grad();
    ASSERT_TRUE(gradient.defined());
    EXPECT_EQ(gradient.numel(), 61);
    optimizer.step();
  });
}

// The means of a backward that fails are not added to those of the next.
TEST(ShardedOptimizerStep, DropsItsPartsAfterAnError) {
  on_ranks(2, [](const Group& world) {
    Mlp models[2];
    for (auto& model : models) {
      set_values(model, 1);
      torch::optim::SGD sgd(model.parameters(), SGDOptions(0.1));
      DataParallelOptions how;
      how.shard = &model == models ? Shard::optimizer : Shard::none;
      DistributedOptimizer optimizer(sgd, model, world, how);
      const auto loss = [&] { return model.forward(at::full({1, 7}, 1.0 + world.rank())).sum(); };
      if (world.rank() == 1) {
        const torch::NoGradGuard no_grad;
        model.layers[0]->bias.add_(1);
      }
      EXPECT_THROW(optimizer.backward_and_update(loss()), ReplicaError);
      broadcast_parameters(model, world);
      model.zero_grad();
      optimizer.backward_and_update(loss());
    }
    for (std::size_t i = 0; i < models[0].parameters().size(); ++i)
      EXPECT_TRUE(torch::equal(models[0].parameters()[i], models[1].parameters()[i])) << i;
  });
}

TEST(ShardedOptimizerStep, NoticesANewParameterGroup) {
  on_ranks(2, [](const Group& world) {
    Mlp model;
    torch::optim::SGD sgd(std::vector<at::Tensor>{model.layers[0]->weight}, SGDOptions(0.1));
    DistributedOptimizer optimizer(sgd, model, world, state_in_parts);
    sgd.add_param_group(OptimizerParamGroup({model.layers[0]->bias}));
    EXPECT_THAT(refusal([&] {
                  optimizer.backward_and_update(model.forward(at::ones({1, 7})).sum());
                }),
                HasSubstr("parameter group 1 has changed"));
    expect_usable(world);
  });
}

TEST(ShardedOptimizerStep, TakesAMovedParameterAndReleasesAllAtItsEnd) {
  on_ranks(3, [](const Group& world) {
    Mlp model;
    Mlp other;
    for (auto* mlp : {&model, &other}) set_values(*mlp, 1);
    torch::optim::SGD sgd(model.parameters(), SGDOptions(0.1).momentum(0.9));
    torch::optim::SGD of_other(other.parameters(), SGDOptions(0.1).momentum(0.9));
    auto optimizer = std::make_unique<DistributedOptimizer>(sgd, model, world, state_in_parts);
    DistributedOptimizer whole(of_other, other, world, DataParallelOptions{});
    const auto step = [&] {
      const auto x = at::full({1, 7}, 0.1 * world.rank());
      optimizer->backward_and_update(model.forward(x).sum());
      whole.backward_and_update(other.forward(x).sum());
    };
    step();
    for (auto* mlp : {&model, &other}) {
      auto& bias = mlp->layers[2]->bias;
      bias.set_data(at::full_like(bias, 7));
    }
    step();
    for (std::size_t i = 0; i < model.parameters().size(); ++i)
      EXPECT_TRUE(torch::equal(model.parameters()[i], other.parameters()[i])) << i;
    optimizer.reset();
    for (std::size_t i = 0; i < model.parameters().size(); ++i) {
      EXPECT_TRUE(torch::equal(model.parameters()[i], other.parameters()[i])) << i;
      EXPECT_TRUE(sgd.param_groups()[0].params()[i].is_same(model.parameters()[i])) << i;
    }
    // What remains are parts: no checkpoint has them, and another wrapper goes on with them.
    const TemporaryFolder folder;
    try {
      Checkpoint{.model = model, .optimizer = sgd}.save(folder / "parts");
      ADD_FAILURE() << "saved parts as if they were all";
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), HasSubstr("remains from a DistributedOptimizer that divided it"));
    }
    optimizer = std::make_unique<DistributedOptimizer>(sgd, model, world, state_in_parts);
    step();
    for (std::size_t i = 0; i < model.parameters().size(); ++i)
      EXPECT_TRUE(torch::equal(model.parameters()[i], other.parameters()[i])) << i;
  });
}

TEST(ShardedOptimizerStep, WorksUnderStrategiesThatAverageEveryGradient) {
  on_ranks(4, [](const Group& world) {
    for (const char* text : {"fp16", "bf16", "topk:0.3", "int8", "power_sgd:rank=1"}) {
      SCOPED_TRACE(text);
      Mlp model;
      Mlp other;
      for (auto* mlp : {&model, &other}) set_values(*mlp, 1);
      torch::optim::Adam adam(model.parameters(), AdamOptions(0.01));
      torch::optim::Adam of_other(other.parameters(), AdamOptions(0.01));
      const DataParallelOptions how{.strategy = parse_strategy(text), .shard = Shard::optimizer};
      DistributedOptimizer optimizer(adam, model, world, how);
      DistributedOptimizer whole(of_other, other, world, parse_strategy(text));
      for (int step = 0; step < 5; ++step) {
        const auto x = random({4, 7}, static_cast<std::uint64_t>(10 * step + world.rank()));
        optimizer.backward_and_update(model.forward(x).square().mean());
        whole.backward_and_update(other.forward(x).square().mean());
      }
      for (std::size_t i = 0; i < model.parameters().size(); ++i)
        EXPECT_TRUE(torch::equal(model.parameters()[i], other.parameters()[i])) << i;
    }
  });
}

TEST(ShardedOptimizerStep, UpdatesSparseAndDenseParameters) {
  struct Words : torch::nn::Module {
    Words()
        : table(register_module(
              "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 3).sparse(true)))),
          last(register_module("last", torch::nn::Linear(3, 2))) {}
    torch::nn::Embedding table;
    torch::nn::Linear last;
  };
  on_ranks(3, [](const Group& world) {
    Words models[2];
    std::vector<std::unique_ptr<torch::optim::SGD>> sgd;
    std::vector<std::unique_ptr<DistributedOptimizer>> optimizers;
    for (auto& model : models) {
      set_values(model, 1);
      sgd.push_back(std::make_unique<torch::optim::SGD>(model.parameters(), SGDOptions(0.1)));
      optimizers.push_back(std::make_unique<DistributedOptimizer>(
          *sgd.back(), model, world,
          DataParallelOptions{.shard = optimizers.empty() ? Shard::optimizer : Shard::none}));
    }
    for (int step = 0; step < 4; ++step) {
      const auto words = torch::tensor({std::int64_t{step}, std::int64_t{world.rank()}});
      for (std::size_t i = 0; i < 2; ++i) {
        optimizers[i]->backward_and_update(
            models[i].last->forward(models[i].table->forward(words)).square().sum());
      }
    }
    for (std::size_t i = 0; i < models[0].parameters().size(); ++i)
      EXPECT_TRUE(torch::equal(models[0].parameters()[i], models[1].parameters()[i])) << i;
  });
}

}  // namespace
}  // namespace lockstep::testing
