#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/distributed_optimizer.h"
#include "tests/parallel/models.h"

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
      case 2: {
        {
          const auto local = optimizer.no_sync();
          model.loss(world, step + 50).backward();
        }
        return optimizer.backward_and_update(model.loss(world, step));
      }
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

}  // namespace lockstep::testing
