// Trains Needle's ResNet9 on CIFAR-10, with each part of data-parallel training as explicit code:
//
//   lockstep run -n 2 resnet9_cifar10 --data cifar-10-batches-bin
//   mpiexec -np 2 resnet9_cifar10 --data cifar-10-batches-bin
//   lockstep run -n 2 --max-restarts 3 resnet9_cifar10 --checkpoint-dir run
//
#include <lockstep/lockstep.h>
#include <torch/data/dataloader.h>
#include <torch/nn.h>
#include <torch/optim/adam.h>

#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "program.h"

namespace nn = torch::nn;
using nn::functional::cross_entropy;
using program::fixed;
using Batch = torch::data::Example<>;

struct ConvBnImpl : nn::Module {
  ConvBnImpl(int inputs, int outputs, int size, int stride)
      : conv(register_module(
            "conv",
            nn::Conv2d(
                nn::Conv2dOptions(inputs, outputs, size).stride(stride).padding((size - 1) / 2)))),
        bn(register_module("bn", nn::BatchNorm2d(outputs))) {}
  at::Tensor forward(const at::Tensor& x) { return torch::relu(bn(conv(x))); }
  nn::Conv2d conv;
  nn::BatchNorm2d bn;
};
TORCH_MODULE(ConvBn);

struct ResidualImpl : nn::Module {
  explicit ResidualImpl(int channels)
      : first(register_module("first", ConvBn(channels, channels, 3, 1))),
        second(register_module("second", ConvBn(channels, channels, 3, 1))) {}
  at::Tensor forward(const at::Tensor& x) { return x + second(first(x)); }
  ConvBn first, second;
};
TORCH_MODULE(Residual);

struct ResNet9 : nn::Module {
  ResNet9() { register_module("layers", layers); }
  at::Tensor forward(const at::Tensor& x) {
    return layers->forward(x.to(parameters().front().scalar_type())).to(at::kFloat);
  }
  nn::Sequential layers{ConvBn(3, 16, 7, 4),  ConvBn(16, 32, 3, 2),  Residual(32),
                        ConvBn(32, 64, 3, 2), ConvBn(64, 128, 3, 2), Residual(128),
                        nn::Flatten(),        nn::Linear(128, 128),  nn::ReLU(),
                        nn::Linear(128, 10)};
};

/// Parameters of bfloat16, except in batch norms, whose statistics are averages of float32.
void to_bf16(ResNet9& model) {
  for (const auto& module : model.modules()) {
    if (module->as<nn::BatchNorm2d>() != nullptr) continue;
    for (auto& parameter : module->parameters(/*recurse=*/false))
      parameter.set_data(parameter.to(at::kBFloat16));
  }
}

std::unique_ptr<torch::optim::Adam> make_adam(ResNet9& model,
                                              const torch::optim::AdamOptions& options,
                                              const std::string& bf16) {
  if (bf16.empty()) return std::make_unique<torch::optim::Adam>(model.parameters(), options);
  return std::make_unique<lockstep::FusedAdam>(model.parameters(), options,
                                               lockstep::parse_low_precision(bf16));
}

struct Settings {
  std::int64_t epochs = 5;
  std::size_t batch_size = 128;
  double lr = 0.001;
  double weight_decay = 0.001;
  std::uint64_t seed = 0;
  std::string data;
  std::size_t images = 5000;
  bool augment = false;
  std::size_t workers = 1;
  std::string strategy = "fp32";
  std::string bf16;
  bool sync_batchnorm = false;
  std::string checkpoint_dir;
  std::string metrics;
  program::LogFlags log;
  bool quiet = false;
  bool verbose = false;
};

lockstep::Cifar10 load(const Settings& settings, lockstep::Cifar10::Split split) {
  if (!settings.data.empty()) return lockstep::Cifar10(settings.data, split);
  const bool train = split == lockstep::Cifar10::Split::train;
  return lockstep::coloured_shapes(train ? settings.images : settings.images / 5,
                                   settings.seed + (train ? 0 : 1));
}

/// Evaluates every image once, over all ranks.
lockstep::Score evaluate_cifar10(ResNet9& model, const lockstep::Cifar10& data,
                                 const lockstep::Group& world) {
  const torch::NoGradGuard no_grad;
  model.eval();
  lockstep::Tally tally;
  auto loader = torch::data::make_data_loader(
      data, lockstep::EvaluationSampler(data.size().value(), world), 128);
  for (const Batch& loaded : *loader) {
    const Batch batch = program::on_device(loaded, world);
    const at::Tensor outputs = model.forward(batch.data);
    tally.add(cross_entropy(outputs, batch.target), outputs, batch.target);
  }
  model.train();
  return tally.score(world);
}

void train(const Settings& settings, const lockstep::Group& world) {
  const bool loud = world.rank() == 0 && !settings.quiet;
  const auto ranks = static_cast<std::size_t>(world.size());
  const std::size_t batch_size = settings.batch_size / ranks;
  if (batch_size < 2)  // a batch norm needs at least two images
    throw lockstep::InvalidArgument("--batch-size " + std::to_string(settings.batch_size) +
                                    ": expected two images or more for each of " +
                                    program::plural(ranks, "rank"));
  std::optional<lockstep::Cifar10> train_data;
  std::optional<lockstep::Cifar10> test_data;
  std::optional<program::MetricsFile> metrics;
  program::CheckpointDir folder(settings.checkpoint_dir);
  lockstep::all_or_none(world, [&] {
    train_data.emplace(load(settings, lockstep::Cifar10::Split::train));
    test_data.emplace(load(settings, lockstep::Cifar10::Split::test));
    if (world.rank() == 0) metrics.emplace(settings.metrics, folder.newest().has_value());
  });
  folder.prepare(world);
  lockstep::RunLog log(world, program::log_options(settings.log, settings.strategy));
  if (loud)
    std::cout << (settings.data.empty() ? "coloured shapes, as --data names no folder"
                                        : "data " + settings.data)
              << ": " << *train_data->size() << " images to train, " << *test_data->size()
              << " to test; " << program::plural(ranks, "rank") << " of batch " << batch_size
              << std::endl;

  // Each rank has the same part of the images in every epoch.
  lockstep::Augmented augmented(
      *train_data, settings.augment ? lockstep::AugmentOptions{.seed = settings.seed}
                                    : lockstep::AugmentOptions{.seed = 0, .pad = 0, .flip = false});
  auto part = lockstep::partition_dataset(augmented, world);
  const std::size_t images = part.size().value();
  const auto rank = static_cast<std::uint64_t>(world.rank());
  lockstep::DistributedSampler sampler(images, lockstep::ShardSpec{},
                                       {.seed = settings.seed + rank});
  const bool drop_last = images % batch_size == 1;  // as above
  const std::size_t batches_an_epoch = images / batch_size + (images % batch_size > 1 ? 1 : 0);
  if (batches_an_epoch == 0)
    throw lockstep::InvalidArgument(
        (settings.data.empty() ? "--images " + std::to_string(settings.images)
                               : "--data " + settings.data) +
        ": expected two images or more for each of " + program::plural(ranks, "rank"));
  lockstep::PrefetchLoader loader(
      part, sampler,
      {.batch_size = batch_size, .workers = settings.workers, .drop_last = drop_last});

  std::shared_ptr<ResNet9> model;
  world.in_turn([&] {
    torch::manual_seed(settings.seed);
    model = std::make_shared<ResNet9>();
  });
  if (!settings.bf16.empty()) to_bf16(*model);
  model->to(world.device());
  lockstep::broadcast_parameters(*model, world);
  if (settings.sync_batchnorm) {
    const auto layers = lockstep::convert_sync_batchnorm(*model, world);
    if (loud)
      std::cout << program::plural(layers, "batch norm") << " synchronised over all ranks"
                << std::endl;
  }
  const auto adam =
      make_adam(*model, torch::optim::AdamOptions(settings.lr).weight_decay(settings.weight_decay),
                settings.bf16);
  lockstep::DistributedOptimizer optimizer(*adam, *model, world,
                                           lockstep::parse_strategy(settings.strategy));
  const lockstep::Checkpoint checkpoint{.model = *model, .optimizer = *adam, .strategy = optimizer};
  std::int64_t done = 0;
  const auto resumed = folder.load_newest(checkpoint, world, loud);
  if (resumed) done = resumed->meta.epoch;
  sampler.set_epoch(static_cast<std::uint64_t>(done));

  constexpr int lines = 100;  // batches between two lines of output
  const auto begin = program::Clock::now();
  double waited = 0;
  std::int64_t trained_images = 0;
  std::int64_t batches = done * static_cast<std::int64_t>(batches_an_epoch);
  if (resumed) batches = program::steps_before(resumed->meta, batches);
  lockstep::Tally tally;
  const auto report = [&](std::int64_t epoch) {
    const lockstep::Score score = tally.score(world);
    tally = {};
    if (score.samples == 0) return;
    program::record(metrics, log, batches,
                    {{"epoch", epoch},
                     {"batch", batches},
                     {"train_loss", score.loss},
                     {"train_accuracy", score.accuracy},
                     {"seconds", program::seconds_since(begin)}});
    if (loud)
      std::cout << "epoch " << epoch << "  batch " << batches << "  loss " << fixed(score.loss, 4)
                << "  accuracy " << fixed(100 * score.accuracy, 2) << " %" << std::endl;
  };
  for (std::int64_t epoch = done + 1; epoch <= settings.epochs; ++epoch) {
    augmented.set_epoch(static_cast<std::uint64_t>(epoch));
    auto idle = program::Clock::now();
    const std::int64_t images_before = trained_images;
    log.begin_interval(batches);
    for (const Batch& loaded : loader) {
      waited += program::seconds_since(idle);
      const Batch batch = program::on_device(loaded, world);
      optimizer.zero_grad();
      const at::Tensor outputs = model->forward(batch.data);
      const at::Tensor loss = cross_entropy(outputs, batch.target);
      loss.backward();
      optimizer.step();
      tally.add(loss, outputs, batch.target);
      trained_images += batch.target.size(0);
      if (++batches % lines == 0) report(epoch);
      idle = program::Clock::now();
    }
    report(epoch);
    log.end_interval(batches, trained_images - images_before);
    if (!folder) continue;
    optimizer.synchronize();
    folder.save(checkpoint, {.epoch = epoch, .notes = program::steps_note(batches)});
  }
  folder.finish();
  const double seconds = program::seconds_since(begin);

  optimizer.synchronize();
  const double rate = lockstep::throughput(trained_images, seconds, world);
  const lockstep::Score score = evaluate_cifar10(*model, *test_data, world);
  if (done < settings.epochs)
    program::record(metrics, log, batches,
                    {{"test_loss", score.loss},
                     {"test_accuracy", score.accuracy},
                     {"seconds", seconds},
                     {"images_per_second", rate},
                     {"waiting_for_data", waited / seconds},
                     {"ranks", world.size()}});
  program::finish(log, "resnet9_cifar10");
  if (settings.verbose) program::print_statistics(world);
  if (loud)
    std::cout << "training took " << fixed(seconds, 1) << " s, " << fixed(100 * waited / seconds, 1)
              << " % of it waiting for data, " << fixed(rate, 0) << " images/s\ntest loss "
              << fixed(score.loss, 4) << "  accuracy " << fixed(100 * score.accuracy, 2) << " %"
              << std::endl;
}

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app(
      "Trains Needle's ResNet9 on CIFAR-10. Start it with: lockstep run -n 2 resnet9_cifar10",
      "resnet9_cifar10");
  app.add_option("--epochs", settings.epochs, "Passes over the images")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--batch-size", settings.batch_size, "Images a step, divided over the ranks")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--lr", settings.lr, "Adam's learning rate")
      ->check(program::positive())
      ->capture_default_str();
  app.add_option("--weight-decay", settings.weight_decay, "Adam's weight decay")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--seed", settings.seed, "Decides weights, order and variations")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--data", settings.data,
                 "Folder with data_batch_1.bin and test_batch.bin; coloured shapes without it");
  app.add_option("--images", settings.images, "Coloured shapes to make, where there is no --data")
      ->check(CLI::Range(10, 1'000'000))
      ->capture_default_str();
  app.add_flag("--augment", settings.augment, "Pad, crop and flip the images at random");
  app.add_option("--workers", settings.workers, "Threads that read ahead for a rank")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  program::add_strategy(app, settings.strategy);
  program::add_bf16(app, settings.bf16);
  program::add_world(app);
  app.add_flag("--sync-batchnorm", settings.sync_batchnorm,
               "Batch norms use the images of all ranks");
  program::add_checkpoint_dir(app, settings.checkpoint_dir);
  app.add_option("--metrics", settings.metrics, "File for one JSON object a line");
  program::add_log_options(app, settings.log);
  program::add_output(app, settings.quiet, settings.verbose);
  return program::run(app, argc, argv,
                      [&](const lockstep::Group& world) { train(settings, world); });
}
