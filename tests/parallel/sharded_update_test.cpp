// Optimizer state that is divided among the ranks: the same numbers, bit for bit, as when every
// rank has all of it.
#include "tests/parallel/trainings.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;
using torch::optim::SGDOptions;

const DataParallelOptions state_in_parts{.shard = Shard::optimizer};

SUITE_ON_RANKS(ShardedOptimizer, 1, 2, 3, 4, 7);

TEST_P_ON_RANKS(ShardedOptimizer, TakesTheStepsOfAnUnshardedOneAndSavesTheSameFile) {
  for (const auto& [name, make] : every_optimizer) {
    SCOPED_TRACE(name);
    expect_same_steps(world, make, state_in_parts);
  }
}

TEST_P_ON_RANKS(ShardedOptimizer, KeepsStateOfItsPartsOnly) {
  Mlp model({7, 61, 33, 3});
  set_values(model, 0);
  torch::optim::AdamW adam(model.parameters(), AdamWOptions(0.01));
  DistributedOptimizer optimizer(adam, model, world, state_in_parts);
  optimizer.backward_and_update(model.forward(at::ones({1, 7})).sum());
  std::int64_t elements = 0;
  for (const auto& [parameter, state] : adam.state())
    elements += static_cast<torch::optim::AdamWParamState&>(*state).exp_avg().numel();
  expect_parts(world, elements, model);
}

// The gradient by hand is found in step(), after the parts of the others have been averaged.
TEST_P_ON_RANKS(ShardedOptimizer, KeepsItsPartsWhileAGradientByHandIsAveraged) {
  Trained in_parts(world, every_optimizer[2].second, state_in_parts);
  Trained whole(world, every_optimizer[2].second, {});
  for (int step = 0; step < 4; ++step) {
    for (auto* trained : {&in_parts, &whole}) {
      auto& unused = trained->model.unused;
      if (world.rank() == 0) unused.mutable_grad() = at::full_like(unused, step);
      trained->optimizer.backward_and_update(trained->model.loss(world, step));
    }
    expect_equal_models(in_parts.model, whole.model);
  }
}

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
    EXPECT_GT(safetensors::read(folder / "whole").tensors.size(), 20);
    EXPECT_TRUE(content(folder / "sharded") == content(folder / "whole")) << ranks;
    train(ranks, 3, {.share_memory = true}, "of_three", "shared");
    EXPECT_TRUE(content(folder / "shared") == content(folder / "whole")) << ranks;
  }
}

TEST_ON_RANKS(ShardedCheckpoint, IsWrittenBehindTheTraining, 3) {
  const TemporaryFolder folder;
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
}

TEST_ON_RANKS(ShardedCheckpoint, NeedsTheGroup, 2) {
  const TemporaryFolder folder;
  Trained trained(world, every_optimizer[1].second, state_in_parts);
  trained.step(world, 0);
  const Checkpoint checkpoint{.model = trained.model, .optimizer = *trained.base};
  const auto text = HasSubstr("its state is divided among 2 ranks");
  EXPECT_THAT(failure([&] { checkpoint.save(folder / "alone"); }), text);
  EXPECT_THAT(failure([&] { (void)state_dict(*trained.base); }), text);
  const auto alone = world.split(world.rank());
  EXPECT_THAT(failure([&] { checkpoint.save(folder / "alone", {}, alone); }),
              HasSubstr("got a group of 1 ranks, expected the 2 ranks that share its state"));
  EXPECT_FALSE(std::filesystem::exists(folder / "alone"));
  expect_usable(world);
}

TEST_ON_RANKS(ShardedOptimizerStart, RefusesWhatItCannotDo, 2) {
  Mlp model;
  torch::optim::SGD sgd(model.parameters(), SGDOptions(0.1));
  FusedSgd fused(model.parameters(), SGDOptions(0.1));
  torch::optim::LBFGS lbfgs(model.parameters());
  const auto refused = [&](auto& optimizer, const DataParallelOptions& how,
                           const std::string& text) {
    expect_refused(world, text, [&] { DistributedOptimizer(optimizer, model, world, how); });
  };
  const DataParallelOptions one_copy{.share_memory = true};
  refused(sgd, {.strategy = LocalSgd{.period = 4}, .shard = Shard::optimizer},
          "which does not average every gradient at every step");
  refused(fused, {.shard = Shard::gradients, .share_memory = true},
          "share_memory: got shard = Shard::gradients");
  refused(fused, {.strategy = Fp16{}, .share_memory = true},
          "share_memory: got strategy fp16, expected fp32");
  for (const auto& [option, how] :
       {std::pair("shard", state_in_parts), {"share_memory", one_copy}}) {
    refused(lbfgs, how,
            std::string(option) +
                ": got torch::optim::LBFGS, expected an optimizer that updates "
                "each element by itself: SGD, Adam, AdamW, RMSprop or Adagrad");
    const auto alias = model.layers[1]->weight.detach();
    refused(fused, how, "parameter layer1.weight shares its memory with another tensor");
  }
  const bool first = world.rank() == 0;
  refused(sgd, {.shard = first ? Shard::optimizer : Shard::none}, "shard optimizer");
  refused(fused, {.share_memory = first}, "share_memory");
}

TEST_ON_RANKS(ShardedOptimizerStart, RefusesParameterGroupsThatDifferBetweenRanks, 2) {
  Mlp model({7, 3});
  std::vector<at::Tensor> parameters{model.layers[0]->weight, model.layers[0]->bias};
  if (world.rank() == 1) std::swap(parameters[0], parameters[1]);
  torch::optim::SGD sgd(
      {OptimizerParamGroup({parameters[0]}), OptimizerParamGroup({parameters[1]})},
      SGDOptions(0.1));
  const auto* const text =
      "parameter layer0.bias in parameter group 1 on rank 0; parameter layer0.bias in parameter "
      "group 0 on rank 1";
  for (const auto& how : {state_in_parts, DataParallelOptions{.share_memory = true}})
    expect_refused(world, text, [&] { DistributedOptimizer(sgd, model, world, how); });
}

std::uint64_t bytes_of(const Group& world, Collective collective) {
  std::uint64_t bytes = 0;
  for (const auto& row : world.statistics())
    if (row.collective == collective && row.bucket >= 0) bytes += row.bytes;
  return bytes;
}

// A reduce-scatter sends half as much as an all_reduce.
TEST_ON_RANKS(ShardedOptimizerStep, AveragesPartsOnlyIfTheUpdateFollowsAtOnce, 4) {
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
}

// The means of a backward that fails are not added to those of the next.
TEST_ON_RANKS(ShardedOptimizerStep, DropsItsPartsAfterAnError, 2) {
  Mlp models[2];
  for (auto& model : models) {
    set_values(model, 1);
    torch::optim::SGD sgd(model.parameters(), SGDOptions(0.1));
    DataParallelOptions how;
    how.shard = &model == models ? Shard::optimizer : Shard::none;
    DistributedOptimizer optimizer(sgd, model, world, how);
    const auto loss = [&] { return model.forward(at::full({1, 7}, 1.0 + world.rank())).sum(); };
    if (world.rank() == 1) model.layers[0]->bias.detach().add_(1);
    EXPECT_THROW(optimizer.backward_and_update(loss()), ReplicaError);
    broadcast_parameters(model, world);
    model.zero_grad();
    optimizer.backward_and_update(loss());
  }
  expect_equal_models(models[0], models[1]);
}

TEST_ON_RANKS(ShardedOptimizerStep, NoticesANewParameterGroup, 2) {
  Mlp model;
  torch::optim::SGD sgd(std::vector<at::Tensor>{model.layers[0]->weight}, SGDOptions(0.1));
  DistributedOptimizer optimizer(sgd, model, world, state_in_parts);
  sgd.add_param_group(OptimizerParamGroup({model.layers[0]->bias}));
  expect_refused(world, "parameter group 1 has changed", [&] {
    optimizer.backward_and_update(model.forward(at::ones({1, 7})).sum());
  });
}

// Each rank updated its part with its own options, and replicas stayed equal.
TEST_ON_RANKS(ShardedOptimizerStep, RefusesOptionsThatDifferBetweenRanks, 3) {
  for (auto how : every_update) {
    if (!divides_update(how)) continue;
    how.optimized_only = true;
    Mlp model;
    set_values(model, 1);
    torch::optim::AdamW adam({OptimizerParamGroup({model.layers[0]->weight}),
                              OptimizerParamGroup({model.layers[0]->bias})},
                             AdamWOptions(0.25));
    DistributedOptimizer optimizer(adam, model, world, how);
    const auto loss = [&] { return model.forward(at::ones({1, 7})).sum(); };
    const auto backward_and_update = [&] { optimizer.backward_and_update(loss()); };
    const auto in_separate_calls = [&] {
      optimizer.zero_grad();
      loss().backward();
      optimizer.step();
    };
    backward_and_update();
    auto& second = static_cast<AdamWOptions&>(adam.param_groups()[1].options());
    if (world.rank() == 1) second.lr(0.5);
    const auto before = model.layers[0]->bias.detach().clone();
    for (const auto& error : {refusal(backward_and_update), refusal(in_separate_calls)}) {
      EXPECT_THAT(error, HasSubstr("lr 0.25 of parameter group 1 on ranks 0, 2; lr 0.5 of "
                                   "parameter group 1 on rank 1, expected the same options"));
    }
    EXPECT_TRUE(torch::equal(model.layers[0]->bias, before));
    expect_usable(world);
    // Options that all ranks change alike, also after the backward.
    loss().backward();
    second.lr(0.125);
    second.betas({0.5, 0.75});
    optimizer.step();
    if (world.rank() == 2) second.betas({0.5, 0.875});
    const auto error = thrown_by<InvalidArgument>(backward_and_update);
    EXPECT_THAT(error.what(), HasSubstr("betas 0.875 of parameter group 1 on "));
    EXPECT_EQ(error.rank(), 2);
  }
}

TEST_ON_RANKS(ShardedOptimizerStep, TakesAMovedParameterAndReleasesAllAtItsEnd, 3) {
  Mlp model, other;
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
  expect_equal_models(model, other);
  optimizer.reset();
  expect_equal_models(model, other);
  for (std::size_t i = 0; i < model.parameters().size(); ++i)
    EXPECT_TRUE(sgd.param_groups()[0].params()[i].is_same(model.parameters()[i])) << i;
  // What remains are parts: no checkpoint has them, and another wrapper goes on with them.
  const TemporaryFolder folder;
  EXPECT_THAT(failure([&] { Checkpoint{.model = model, .optimizer = sgd}.save(folder / "parts"); }),
              HasSubstr("remains from a DistributedOptimizer that divided it"));
  auto in_other_parts = state_in_parts;
  in_other_parts.buckets = one_each.buckets;
  EXPECT_THAT(failure([&] { DistributedOptimizer(sgd, model, world, in_other_parts); }),
              HasSubstr("remains from a DistributedOptimizer that divided it"));
  optimizer = std::make_unique<DistributedOptimizer>(sgd, model, world, state_in_parts);
  step();
  expect_equal_models(model, other);
}

TEST_ON_RANKS(ShardedOptimizerStep, WorksUnderStrategiesThatAverageEveryGradient, 4) {
  for (const char* text : {"fp16", "bf16", "topk:0.3", "int8", "power_sgd:rank=1"})
    expect_equal_trainings(world, text, Shard::optimizer);
}

}  // namespace
}  // namespace lockstep::testing
