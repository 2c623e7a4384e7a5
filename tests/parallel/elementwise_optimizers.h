#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint.h"
#include "lockstep/fused_optimizers.h"
#include "tests/parallel/mixed_training.h"
#include "tests/temporary_folder.h"

namespace lockstep::testing {

/// Two parameter groups, of which the second has other options.
template <class Optimizer, class Options>
Make in_groups(const Options& first, const Options& second) {
  return [=](const std::vector<at::Tensor>& parameters) {
    std::vector<at::Tensor> even;
    std::vector<at::Tensor> odd;
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

/// The bytes of a checkpoint. Ranks: all.
inline std::string file_of(torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                           const Group& world, const std::filesystem::path& path) {
  Checkpoint{.model = model, .optimizer = optimizer}.save(path, {}, world);
  world.barrier().wait();
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
inline std::string file_of(Trained& trained, const Group& world,
                           const std::filesystem::path& path) {
  return file_of(trained.model, *trained.base, world, path);
}

/// The bits and the checkpoints of trainings with those options and without. Ranks: all.
inline void expect_same_steps(const Group& world, const Make& make, const DataParallelOptions& how,
                              const TemporaryFolder& folder) {
  Trained got(world, make, how);
  Trained expected(world, make, {});
  for (int step = 0; step < 15; ++step) {
    for (auto* trained : {&got, &expected}) {
      if (step == 5) trained->base->param_groups()[0].options().set_lr(0.02);
      if (step == 9) trained->model.mlp->layers[1]->bias.requires_grad_(false);
      trained->step(world, step);
    }
    // A rank that is ahead must not update parameters that other ranks still compare.
    world.barrier().wait();
    expect_equal_models(got.model, expected.model);
    world.barrier().wait();
  }
  EXPECT_TRUE(file_of(got, world, folder / "got") == file_of(expected, world, folder / "expected"));
}

}  // namespace lockstep::testing
