#pragma once

#include "lockstep/checkpoint.h"
#include "lockstep/fused_optimizers.h"
#include "tests/parallel/models.h"
#include "tests/temporary_folder.h"

namespace lockstep::testing {

/// An Mlp with a convolution in channels-last strides, a parameter of doubles, one that is frozen
/// and one that no rank uses; what some ranks use follows from the step.
struct Mixed : torch::nn::Module {
  Mixed() {
    mlp = register_module("mlp", std::make_shared<Mlp>(std::vector<std::int64_t>{7, 61, 33, 3}));
    convolution = register_module("convolution", torch::nn::Conv2d(2, 3, 3));
    convolution->weight.set_data(convolution->weight.contiguous(at::MemoryFormat::ChannelsLast));
    doubles = register_parameter("doubles", at::zeros({37}, at::kDouble));
    frozen = register_parameter("frozen", at::ones({5}), false);
    unused = register_parameter("unused", at::ones({9}));
    halves = register_parameter("halves", at::zeros({0}, at::kHalf));
    sometimes = register_parameter("sometimes", at::ones({3, 5}));
  }

  at::Tensor loss(const Group& world, int step) {
    const auto seed = static_cast<std::uint64_t>(100 * step + world.rank());
    auto sum = mlp->forward(random({4, 7}, seed)).pow(2).mean();
    sum = sum + convolution->forward(random({1, 2, 5, 5}, seed + 10)).pow(2).mean();
    sum = sum + (doubles * random({37}, seed + 20, at::kDouble)).sum().to(at::kFloat);
    if (step % 3 == 1 && world.rank() == world.size() - 1) {
      sum = sum + (sometimes * random({3, 5}, seed + 30)).sum();
    }
    return sum * frozen.sum();
  }

  std::shared_ptr<Mlp> mlp;
  torch::nn::Conv2d convolution = nullptr;
  at::Tensor doubles, frozen, unused, halves, sometimes;
};

/// Makes an optimizer of the parameters.
using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

struct Trained {
  Mixed model;
  std::unique_ptr<torch::optim::Optimizer> base;
  DistributedOptimizer optimizer;

  Trained(const Group& world, const Make& make, const DataParallelOptions& how)
      : base(make(with_values(model, world))), optimizer(*base, model, world, how) {}

  static std::vector<at::Tensor> with_values(Mixed& model, const Group& world) {
    set_values(model, static_cast<std::uint64_t>(world.rank()));
    return model.parameters();
  }

  /// In one, in two with clipping in between, with something accumulated before, weighted, and in
  /// less usual ways.
  void step(const Group& world, int step) {
    switch (step % 7) {
      case 0:
        return optimizer.backward_and_update(model.loss(world, step));
      case 1:
        model.loss(world, step).backward();
        torch::nn::utils::clip_grad_norm_(model.parameters(), 0.2);
        optimizer.step();
        return optimizer.zero_grad();
      case 2:
        without_sync(optimizer, [&] { model.loss(world, step + 50).backward(); });
        return optimizer.backward_and_update(model.loss(world, step));
      case 3:  // what was averaged already is added to
        model.loss(world, step).backward();
        return optimizer.backward_and_update(model.loss(world, step + 50));
      case 4:  // a rank without a backward
        if (world.size() == 1 || world.rank() > 0) model.loss(world, step).backward();
        optimizer.step();
        return optimizer.zero_grad();
      case 5:  // some gradients stay in the bucket, and no rank changes them
        model.loss(world, step).backward();
        optimizer.step();
        optimizer.weight(world.rank() + 1);
        return optimizer.backward_and_update((model.doubles * (world.rank() + 2.0)).sum());
      default:
        optimizer.weight(world.rank() + 1);
        return optimizer.backward_and_update(
            world.size() > 1 && world.rank() == 0 ? at::Tensor() : model.loss(world, step));
    }
  }
};

/// Two parameter groups, of which the second has other options.
template <class Optimizer, class Options>
Make in_groups(const Options& first, const Options& second) {
  return [=](const std::vector<at::Tensor>& parameters) {
    std::vector<at::Tensor> even, odd;
    for (std::size_t i = 0; i < parameters.size(); ++i)
      (i % 2 == 0 ? even : odd).push_back(parameters[i]);
    const std::vector<torch::optim::OptimizerParamGroup> groups{
        torch::optim::OptimizerParamGroup(even, std::make_unique<Options>(first)),
        torch::optim::OptimizerParamGroup(odd, std::make_unique<Options>(second))};
    return std::make_unique<Optimizer>(groups, first);
  };
}

template <class Optimizer, class Options>
Make one_group(const Options& options) {
  return [=](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<Optimizer>(parameters, options);
  };
}

/// The optimizers that update each element by itself.
inline const std::vector<std::pair<const char*, Make>> every_optimizer{
    {"SGD", in_groups<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true),
                                         torch::optim::SGDOptions(0.05).weight_decay(0.01))},
    {"Adam", in_groups<torch::optim::Adam>(torch::optim::AdamOptions(0.01),
                                           torch::optim::AdamOptions(0.02).amsgrad(true))},
    {"AdamW", one_group<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01).weight_decay(0.1))},
    {"RMSprop", in_groups<torch::optim::RMSprop>(
                    torch::optim::RMSpropOptions(0.01).momentum(0.9).centered(true),
                    torch::optim::RMSpropOptions(0.02))},
    {"Adagrad",
     one_group<torch::optim::Adagrad>(
         torch::optim::AdagradOptions(0.05).lr_decay(0.1).initial_accumulator_value(0.5))},
    {"FusedSgd", one_group<FusedSgd>(torch::optim::SGDOptions(0.1).momentum(0.9))},
    {"FusedAdamW", in_groups<FusedAdamW>(torch::optim::AdamWOptions(0.01),
                                         torch::optim::AdamWOptions(0.02).amsgrad(true))}};

/// The bytes of a checkpoint. Ranks: all. Those of rank 0 if each has a folder of its own.
inline std::string file_of(torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                           const Group& world, const std::filesystem::path& path) {
  Checkpoint{.model = model, .optimizer = optimizer}.save(path, {}, world);
  world.barrier().wait();
  return content(path);
}
inline std::string file_of(Trained& trained, const Group& world,
                           const std::filesystem::path& path) {
  return file_of(trained.model, *trained.base, world, path);
}

/// The bits and the checkpoints of trainings with those options and without. Ranks: all.
inline void expect_same_steps(const Group& world, const Make& make,
                              const DataParallelOptions& how) {
  const TemporaryFolder folder;
  Trained got(world, make, how), expected(world, make, {});
  for (int step = 0; step < 15; ++step) {
    for (auto* trained : {&got, &expected}) {
      if (step == 5) trained->base->param_groups()[0].options().set_lr(0.02);
      if (step == 9) trained->model.mlp->layers[1]->bias.requires_grad_(false);
      trained->step(world, step);
    }
    expect_equal_replicas(world, got.model, expected.model);
  }
  EXPECT_TRUE(file_of(got, world, folder / "got") == file_of(expected, world, folder / "expected"));
}

/// The ranks have so many elements of the model's parameters each, in all every one of them.
inline void expect_parts(const Group& world, std::int64_t elements,
                         const torch::nn::Module& model) {
  std::int64_t all = 0;
  for (const auto& parameter : model.parameters()) all += parameter.numel();
  // A part is rounded up to cache lines, and parameters begin at cache lines.
  EXPECT_LE(elements, all / world.size() + 16 * 7);
  auto sum = torch::tensor(elements);
  world.all_reduce(sum).wait();
  EXPECT_EQ(sum.item<std::int64_t>(), all);
}

/// Two models with the same values, of which the first has its update sharded or shared.
struct TwoTrainings {
  explicit TwoTrainings(const Group& world,
                        const DataParallelOptions& how = {.shard = Shard::gradients},
                        at::ScalarType dtype = at::kFloat) {
    for (auto* model : {&parts, &whole}) {
      model->to(dtype);
      set_values(*model, 1);
    }
    in_parts = std::make_unique<DistributedOptimizer>(adam, parts, world, how);
    auto unsharded = how;
    unsharded.shard = Shard::none;
    unsharded.share_memory = false;
    in_whole = std::make_unique<DistributedOptimizer>(adam_of_whole, whole, world, unsharded);
  }

  static at::Tensor loss(Mlp& model, const Group& world, int step) {
    const auto dtype = model.parameters()[0].scalar_type();
    const auto seed = static_cast<std::uint64_t>(100 * step + world.rank());
    return model.forward(random({4, 7}, seed, dtype)).square().mean();
  }
  void backward(const Group& world, int step) {
    loss(parts, world, step).backward();
    loss(whole, world, step).backward();
  }
  void update(const Group& world, int step) {
    in_parts->backward_and_update(loss(parts, world, step));
    in_whole->backward_and_update(loss(whole, world, step));
  }
  void finish() {
    for (auto* optimizer : {in_parts.get(), in_whole.get()}) {
      optimizer->step();
      optimizer->zero_grad();
    }
  }

  Mlp parts{{7, 61, 33, 3}}, whole{{7, 61, 33, 3}};
  torch::optim::Adam adam{parts.parameters(), 0.01}, adam_of_whole{whole.parameters(), 0.01};
  std::unique_ptr<DistributedOptimizer> in_parts, in_whole;
};

/// Five steps of a strategy that averages every gradient.
inline void expect_equal_trainings(const Group& world, const char* strategy, Shard shard) {
  SCOPED_TRACE(strategy);
  TwoTrainings pair(world, {.strategy = parse_strategy(strategy), .shard = shard});
  for (int step = 0; step < 5; ++step) pair.update(world, step);
  expect_equal_models(pair.parts, pair.whole);
}

}  // namespace lockstep::testing
