// PyTorch's tutorial program for one process. ddp_trainer.cpp is its port to Lockstep, which adds
// the flags for strategies, logs and restarts.
//
//   single_trainer 10 2
//
#include <lockstep/lockstep.h>
#include <torch/data/dataloader.h>
#include <torch/data/samplers/random.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "program.h"

#ifndef MNIST_SAMPLE
#define MNIST_SAMPLE "examples/data/mnist"
#endif

using torch::nn::functional::cross_entropy;
using Batch = torch::data::Example<>;

struct Settings {
  std::int64_t total_epochs = 0;
  std::int64_t save_every = 0;
  std::size_t batch_size = 32;
  std::string data = MNIST_SAMPLE;
  std::string snapshot = "snapshot.safetensors";
  std::string metrics;
};

struct Model : torch::nn::Module {
  Model() { register_module("linear", linear); }
  at::Tensor forward(const at::Tensor& x) { return linear(x.flatten(1)); }
  torch::nn::Linear linear{784, 10};
};

template <class Loader>
class Trainer {
 public:
  Trainer(const Settings& settings, std::shared_ptr<Model> model, Loader& train_data,
          torch::optim::Optimizer& optimizer)
      : settings_(settings),
        model_(std::move(model)),
        train_data_(train_data),
        optimizer_(optimizer),
        metrics_(settings.metrics, std::filesystem::exists(settings.snapshot)) {
    if (std::filesystem::exists(settings_.snapshot)) load_snapshot();
  }

  void train() {
    for (std::int64_t epoch = epochs_run_; epoch < settings_.total_epochs; ++epoch) {
      run_epoch(epoch);
      if ((epoch + 1) % settings_.save_every == 0) save_snapshot(epoch);
    }
    std::cout << "trained " << program::plural(settings_.total_epochs, "epoch") << std::endl;
  }

 private:
  void load_snapshot() {
    epochs_run_ = lockstep::load_checkpoint(settings_.snapshot, *model_, optimizer_).epoch;
    std::cout << "resuming training from snapshot at epoch " << epochs_run_ << std::endl;
  }

  void run_batch(const Batch& batch) {
    optimizer_.zero_grad();
    const at::Tensor output = model_->forward(batch.data);
    const at::Tensor loss = cross_entropy(output, batch.target);
    loss.backward();
    optimizer_.step();
    tally_.add(loss, output, batch.target);
  }

  void run_epoch(std::int64_t epoch) {
    tally_ = {};
    for (const Batch& batch : train_data_) run_batch(batch);
    const lockstep::Score score = tally_.score();
    metrics_.write({{"epoch", epoch}, {"train_loss", score.loss}});
    std::cout << "epoch " << epoch << " | batch size " << settings_.batch_size << " | samples "
              << score.samples << " | loss " << score.loss << std::endl;
  }

  void save_snapshot(std::int64_t epoch) {
    lockstep::save_checkpoint(settings_.snapshot, *model_, optimizer_, {.epoch = epoch + 1});
    std::cout << "epoch " << epoch << " | training snapshot saved at " << settings_.snapshot
              << std::endl;
  }

  const Settings& settings_;
  std::shared_ptr<Model> model_;
  Loader& train_data_;
  torch::optim::Optimizer& optimizer_;
  program::MetricsFile metrics_;
  lockstep::Tally tally_;
  std::int64_t epochs_run_ = 0;
};

void train(const Settings& settings) {
  const lockstep::Mnist dataset(settings.data);
  torch::manual_seed(0);
  auto model = std::make_shared<Model>();
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  auto train_data = torch::data::make_data_loader(
      dataset, torch::data::samplers::RandomSampler(dataset.size().value()), settings.batch_size);
  Trainer trainer(settings, model, *train_data, optimizer);
  trainer.train();
}

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("A simple training job, on one process", "single_trainer");
  app.add_option("total_epochs", settings.total_epochs, "Epochs to train the model for in all")
      ->required()
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("save_every", settings.save_every, "Epochs between two snapshots")
      ->required()
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--batch_size", settings.batch_size, "Digits a step")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  program::add_mnist_folder(app, settings.data);
  app.add_option("--snapshot", settings.snapshot, "Written, and gone on from if it is there")
      ->capture_default_str();
  app.add_option("--metrics", settings.metrics, "File for one JSON object an epoch");
  try {
    program::parse(app, argc, argv);
    train(settings);
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::cerr << "single_trainer: " << error.what() << std::endl;
    return 1;
  }
}
