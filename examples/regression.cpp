// Trains a regression and evaluates it with metrics over the samples of all ranks. One metric is a
// custom one.
//
//   lockstep run -n 3 regression
#include <lockstep/lockstep.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <iostream>

#include "program.h"

/// The coefficient of determination: 1 - Σ (y - prediction)² / Σ (y - mean of y)².
class RSquared {
 public:
  void add(const at::Tensor& prediction, const at::Tensor& y) {
    errors_.add((y - prediction).square());
    values_.add(y);
    squares_.add(y.to(at::kDouble).square());
  }

  /// NaN without samples, like lockstep::Mean.
  double value() const {
    const double mean = values_.value();
    return 1 - errors_.value() / (squares_.value() - mean * mean);
  }

  void combine(lockstep::MetricCombiner& combiner) {
    errors_.combine(combiner);
    values_.combine(combiner);
    squares_.combine(combiner);
  }

 private:
  lockstep::Mean errors_;
  lockstep::Mean values_;
  lockstep::Mean squares_;
};

struct Samples {
  at::Tensor x, y;
};

/// Noisy samples of y = x · (1, 2, …, 8).
Samples make_samples(std::int64_t count, at::Device device) {
  const auto weights = at::arange(1, 9, at::kFloat).view({8, 1});
  const auto x = torch::randn({count, 8});
  const auto y = x.mm(weights) + 0.1 * torch::randn({count, 1});
  return {x.to(device), y.to(device)};
}

void train(const lockstep::Group& world) {
  torch::nn::Linear model(torch::nn::LinearOptions(8, 1));
  model->to(world.device());
  lockstep::DistributedDataParallel ddp(model, world);
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.05));
  torch::manual_seed(1 + world.rank());
  for (int epoch = 1; epoch <= 4; ++epoch) {
    lockstep::Mean train_loss;
    for (int step = 0; step < 25; ++step) {
      const auto [x, y] = make_samples(32, world.device());
      sgd.zero_grad();
      const auto loss = torch::mse_loss(ddp(x), y);
      loss.backward();
      sgd.step();
      train_loss.add(loss, 32);  // the mean of 32 samples
    }

    const torch::NoGradGuard no_grad;
    lockstep::Mean absolute_error;
    RSquared r_squared;
    const auto [x, y] = make_samples(
        100 + 50 * world.rank(), world.device());  // ranks may have different numbers of samples
    const auto prediction = model->forward(x);
    absolute_error.add((prediction - y).abs());
    r_squared.add(prediction, y);

    const auto [loss, error, r2] = lockstep::compute(world, train_loss, absolute_error, r_squared);
    if (world.rank() == 0) {
      std::cout << "epoch " << epoch << ": loss " << program::fixed(loss, 4) << ", absolute error "
                << program::fixed(error, 4) << ", R2 " << program::fixed(r2, 4) << std::endl;
    }
  }
}

int main(int argc, char** argv) {
  CLI::App app("Trains and evaluates a regression. Start it with: lockstep run -n 3 regression",
               "regression");
  program::add_world(app);
  return program::run(app, argc, argv, train);
}
