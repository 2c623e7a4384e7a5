#pragma once

#include <torch/nn.h>
#include <torch/optim.h>

#include <functional>
#include <memory>
#include <vector>

#include "lockstep/checkpoint.h"
#include "lockstep/moving_average.h"
#include "tests/matchers.h"
#include "tests/message_of.h"
#include "tests/on_ranks.h"
#include "tests/temporary_folder.h"

namespace lockstep::testing {

struct Net : torch::nn::Module {
  explicit Net(int hidden = 6) : first(4, hidden), norm(hidden), second(hidden, 3) {
    register_module("first", first);
    register_module("norm", norm);
    register_module("second", second);
    unused = register_parameter("unused", torch::ones({2}));
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::relu(norm(first(x)))); }

  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear second;
  at::Tensor unused;
};

/// Copies of a model's parameters and buffers.
inline std::vector<at::Tensor> values_of(const torch::nn::Module& model) {
  std::vector<at::Tensor> all;
  for (const auto& tensor : model.parameters()) all.push_back(tensor.detach().clone());
  for (const auto& tensor : model.buffers()) all.push_back(tensor.clone());
  return all;
}

struct OptimizerKind {
  const char* name;
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)> make;
};

template <class Optimizer, class Options>
OptimizerKind kind_of(const char* name, const Options& options) {
  return {name, [options](const std::vector<at::Tensor>& parameters) {
            return std::make_unique<Optimizer>(parameters, options);
          }};
}

inline const OptimizerKind kinds[] = {
    kind_of<torch::optim::SGD>("Sgd",
                               torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(1e-3)),
    kind_of<torch::optim::SGD>("SgdWithoutMomentum", torch::optim::SGDOptions(0.1)),
    kind_of<torch::optim::Adam>("Adam", torch::optim::AdamOptions(0.01).amsgrad(true)),
    kind_of<torch::optim::AdamW>("AdamW", torch::optim::AdamWOptions(0.01)),
    kind_of<torch::optim::RMSprop>("Rmsprop",
                                   torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true)),
    kind_of<torch::optim::Adagrad>(
        "Adagrad", torch::optim::AdagradOptions(0.05).initial_accumulator_value(0.1)),
    kind_of<torch::optim::LBFGS>("Lbfgs",
                                 torch::optim::LBFGSOptions(0.1).max_iter(2).history_size(3)),
    kind_of<torch::optim::LBFGS>(
        "LbfgsWithLineSearch",
        torch::optim::LBFGSOptions(1).max_iter(3).history_size(4).line_search_fn("strong_wolfe"))};

struct Training {
  explicit Training(const OptimizerKind& kind = kinds[0], int hidden = 6)
      : model(std::make_shared<Net>(hidden)), optimizer(kind.make(model->parameters())) {}

  void step(int number) {
    auto generator =
        torch::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(number));
    const at::Tensor x = torch::randn({8, 4}, generator);
    const at::Tensor y = torch::randint(0, 3, {8}, generator, torch::kLong);
    optimizer->step([&] {
      optimizer->zero_grad();
      at::Tensor loss = torch::nn::functional::cross_entropy(model->forward(x), y);
      loss.backward();
      return loss;
    });
  }
  void save(const std::filesystem::path& path, const CheckpointMeta& meta = {}) const {
    save_checkpoint(path, *model, *optimizer, meta);
  }
  CheckpointMeta load(const std::filesystem::path& path) {
    return load_checkpoint(path, *model, *optimizer);
  }
  std::vector<at::Tensor> values() const { return values_of(*model); }

  std::shared_ptr<Net> model;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

/// One parameter, whose value a test sets.
struct Single : torch::nn::Module {
  explicit Single(at::Tensor first = torch::zeros({3}, torch::kDouble)) {
    const bool trainable = first.is_floating_point();
    value = register_parameter("value", std::move(first), trainable);
  }
  void set(double to) {
    const torch::NoGradGuard no_grad;
    value.fill_(to);
  }
  at::Tensor value;
};

/// The values of the averaged model.
inline std::vector<at::Tensor> values_of(MovingAverage& average, const torch::nn::Module& model) {
  const auto averaged = average.apply();
  return values_of(model);
}

}  // namespace lockstep::testing
