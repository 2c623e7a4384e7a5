// PyTorch's tutorial program for several processes. single_trainer.cpp is the same program for one
// process: the difference is the port to Lockstep.
//
//   lockstep run -n 2 ddp_trainer 10 2
//   lockstep run -n 2 --max-restarts 3 ddp_trainer 10 2
//
#include <lockstep/lockstep.h>
#include <torch/data/dataloader.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
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
  program::LogFlags log;
  std::string strategy = "fp32";
  bool quiet = false;
  bool verbose = false;
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
          lockstep::DistributedSampler sampler, torch::optim::Optimizer& optimizer,
          const lockstep::Group& world)
      : settings_(settings),
        world_(world),
        model_(std::move(model)),
        ddp_(model_, world, {.strategy = lockstep::parse_strategy(settings.strategy)}),
        train_data_(train_data),
        sampler_(std::move(sampler)),
        optimizer_(optimizer),
        log_(world, program::log_options(settings.log, settings.strategy)) {
    lockstep::all_or_none(world_, [&] {
      if (world_.rank() == 0)
        metrics_.emplace(settings_.metrics, std::filesystem::exists(settings_.snapshot));
    });
    if (snapshot_exists()) load_snapshot();
  }

  void train() {
    for (std::int64_t epoch = epochs_run_; epoch < settings_.total_epochs; ++epoch) {
      run_epoch(epoch);
      if ((epoch + 1) % settings_.save_every == 0) save_snapshot(epoch);
    }
    program::finish(log_, "ddp_trainer");
    if (!loud()) return;
    if (settings_.verbose) program::print_statistics(world_);
    std::cout << "trained " << program::plural(settings_.total_epochs, "epoch") << " on "
              << program::plural(world_.size(), "rank") << std::endl;
  }

 private:
  bool loud() const { return world_.rank() == 0 && !settings_.quiet; }

  lockstep::Checkpoint checkpoint() {
    return {.model = *model_, .optimizer = optimizer_, .strategy = ddp_};
  }

  /// Whether rank 0 finds the snapshot. Other ranks may be on another machine.
  bool snapshot_exists() const {
    const at::Tensor exists = torch::zeros({1});
    if (world_.rank() == 0 && std::filesystem::exists(settings_.snapshot)) exists.fill_(1);
    world_.host().broadcast(exists).wait();
    return exists.item<float>() != 0;
  }

  void load_snapshot() {
    const auto [meta, changes] = checkpoint().load(settings_.snapshot, world_);
    epochs_run_ = meta.epoch;
    const std::size_t batches =
        (sampler_.samples_per_rank() + settings_.batch_size - 1) / settings_.batch_size;
    steps_ = program::steps_before(meta, epochs_run_ * static_cast<std::int64_t>(batches));
    if (loud())
      std::cout << "resuming training from snapshot at epoch " << epochs_run_
                << (changes.empty() ? "" : ": " + changes) << std::endl;
  }

  void run_batch(const Batch& batch) {
    optimizer_.zero_grad();
    const at::Tensor output = ddp_(batch.data);
    const at::Tensor loss = cross_entropy(output, batch.target);
    loss.backward();
    optimizer_.step();
    ++steps_;
    tally_.add(loss, output, batch.target);
  }

  void run_epoch(std::int64_t epoch) {
    tally_ = {};
    sampler_.set_epoch(static_cast<std::uint64_t>(epoch));
    log_.begin_interval(steps_);
    for (const Batch& batch : train_data_) run_batch(program::on_device(batch, world_));
    const lockstep::Score score = tally_.score(world_);
    log_.end_interval(steps_, tally_.score().samples);
    program::record(metrics_, log_, steps_, {{"epoch", epoch}, {"train_loss", score.loss}});
    if (!loud()) return;
    std::cout << "epoch " << epoch << " | batch size " << settings_.batch_size << " | samples "
              << score.samples << " | loss " << score.loss << std::endl;
  }

  void save_snapshot(std::int64_t epoch) {
    checkpoint().save(settings_.snapshot,
                      {.epoch = epoch + 1, .notes = program::steps_note(steps_)}, world_);
    if (loud())
      std::cout << "epoch " << epoch << " | training snapshot saved at " << settings_.snapshot
                << std::endl;
  }

  const Settings& settings_;
  lockstep::Group world_;
  std::shared_ptr<Model> model_;
  lockstep::DistributedDataParallel<Model> ddp_;
  Loader& train_data_;
  lockstep::DistributedSampler sampler_;  // shares its state with the loader's copy
  torch::optim::Optimizer& optimizer_;
  lockstep::RunLog log_;
  std::optional<program::MetricsFile> metrics_;  // on rank 0 only
  lockstep::Tally tally_;
  std::int64_t epochs_run_ = 0;
  std::int64_t steps_ = 0;  // including those of the run that it resumes
};

void train(const Settings& settings, const lockstep::Group& world) {
  std::optional<lockstep::Mnist> dataset;
  lockstep::all_or_none(world, [&] { dataset.emplace(settings.data); });
  torch::manual_seed(0);
  auto model = std::make_shared<Model>();
  model->to(world.device());
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  const lockstep::DistributedSampler sampler(dataset->size().value(), world);
  auto train_data = torch::data::make_data_loader(*dataset, sampler, settings.batch_size);
  Trainer trainer(settings, model, *train_data, sampler, optimizer, world);
  trainer.train();
}

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app(
      "A simple distributed training job. Start it with: lockstep run -n 2 ddp_trainer 10 2",
      "ddp_trainer");
  app.add_option("total_epochs", settings.total_epochs, "Epochs to train the model for in all")
      ->required()
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("save_every", settings.save_every, "Epochs between two snapshots")
      ->required()
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--batch_size", settings.batch_size, "Digits a rank and step")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  program::add_mnist_folder(app, settings.data);
  app.add_option("--snapshot", settings.snapshot, "Written, and gone on from if it is there")
      ->capture_default_str();
  app.add_option("--metrics", settings.metrics, "File for one JSON object an epoch");
  program::add_log_options(app, settings.log);
  program::add_strategy(app, settings.strategy);
  program::add_world(app);
  program::add_output(app, settings.quiet, settings.verbose);
  return program::run(app, argc, argv,
                      [&](const lockstep::Group& world) { train(settings, world); });
}
