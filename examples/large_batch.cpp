// Training with large batches. A step has several forward and backward passes and one exchange of
// gradients. The learning rate is scaled to the batch size and warms up, as in Goyal et al.,
// https://arxiv.org/abs/1706.02677. --autocast computes in bfloat16 where that is faster.
//
//   lockstep run -n 2 large_batch --accumulate 4 --autocast
//
#include <lockstep/lockstep.h>
#include <torch/data/dataloader.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "program.h"

#ifndef MNIST_SAMPLE
#define MNIST_SAMPLE "examples/data/mnist"
#endif

namespace nn = torch::nn;
using nn::functional::cross_entropy;
using program::fixed;

struct Settings {
  std::int64_t epochs = 5;
  std::int64_t batch_size = 32;
  std::int64_t accumulate = 4;
  double lr = 0.02;  // for 64 images per step
  std::int64_t warm_up = 20;
  bool autocast = false;
  std::uint64_t seed = 0;
  std::size_t images = 0;
  std::string data = MNIST_SAMPLE;
  std::string strategy = "fp32";
  std::string metrics;
  program::LogFlags log;
  bool quiet = false;
  bool verbose = false;
};

nn::Sequential make_model() {
  return nn::Sequential(nn::Conv2d(1, 16, 5), nn::ReLU(), nn::MaxPool2d(2), nn::Conv2d(16, 32, 5),
                        nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(), nn::Linear(512, 10));
}

void train(const Settings& settings, const lockstep::Group& world) {
  std::optional<lockstep::Mnist> data;
  std::optional<program::MetricsFile> metrics;
  lockstep::all_or_none(world, [&] {
    data.emplace(settings.data);
    if (world.rank() == 0) metrics.emplace(settings.metrics);
  });
  const std::size_t all = data->size().value();
  const std::size_t images = settings.images == 0 ? all : std::min(settings.images, all);
  lockstep::DistributedSampler sampler(images, world,
                                       {.seed = settings.seed, .tail = lockstep::Tail::drop});
  const std::int64_t batches =
      static_cast<std::int64_t>(sampler.samples_per_rank()) / settings.batch_size;
  const std::int64_t steps = batches / settings.accumulate;
  if (steps == 0)
    throw lockstep::InvalidArgument("--accumulate " + std::to_string(settings.accumulate) +
                                    ": a rank has " + std::to_string(batches) +
                                    " whole batches an epoch, expected one step's at least");
  auto loader = torch::data::make_data_loader(
      *data, sampler,
      torch::data::DataLoaderOptions(static_cast<std::size_t>(settings.batch_size))
          .drop_last(true));

  lockstep::RunLog log(world, program::log_options(settings.log, settings.strategy));
  nn::Sequential model;
  world.in_turn([&] {
    torch::manual_seed(settings.seed);
    model = make_model();
  });
  model->to(world.device());
  constexpr std::int64_t reference_batch = 64;
  const std::int64_t global_batch = settings.batch_size * settings.accumulate * world.size();
  const double lr = lockstep::scaled_rate(settings.lr, reference_batch, global_batch);
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(lr).momentum(0.9));
  lockstep::LearningRate rate(
      sgd, lockstep::WarmUp{.steps = settings.warm_up,
                            .first = settings.lr / lr,
                            .then = lockstep::CosineDecay{.steps = settings.epochs * steps}});
  lockstep::DistributedDataParallel ddp(model, world,
                                        {.strategy = lockstep::parse_strategy(settings.strategy)});

  const auto style = lockstep::progress_style(world, STDOUT_FILENO, settings.quiet);
  if (style != lockstep::ProgressStyle::silent)
    std::cout << program::plural(global_batch, "image") << " a step: " << settings.batch_size
              << " on each of " << program::plural(world.size(), "rank") << ", "
              << program::plural(settings.accumulate, "time") << "; learning rate " << lr
              << " after " << program::plural(settings.warm_up, "step") << std::endl;

  for (std::int64_t epoch = 1; epoch <= settings.epochs; ++epoch) {
    const std::string title = "epoch " + std::to_string(epoch);
    const auto begin = program::Clock::now();
    lockstep::Progress progress(std::cout, style, title, steps * global_batch, "images");
    lockstep::Tally tally;
    log.begin_interval(rate.steps());
    auto batch = loader->begin();
    for (std::int64_t step = 0; step < steps; ++step) {
      for (std::int64_t part = 1; part <= settings.accumulate; ++part, ++batch) {
        // Gradients accumulate on this rank until the last batch of the step.
        std::optional<lockstep::NoSync> not_yet;
        if (part < settings.accumulate) not_yet.emplace(ddp.no_sync());
        const auto [images_of_part, target] = program::on_device(*batch, world);
        at::Tensor outputs;
        at::Tensor loss;
        {
          const lockstep::Autocast lower(settings.autocast ? at::kBFloat16 : at::kFloat,
                                         world.device().type());
          outputs = ddp(images_of_part);
          loss = cross_entropy(outputs, target);
        }
        (loss / settings.accumulate).backward();
        tally.add(loss, outputs, target);
      }
      sgd.step();
      sgd.zero_grad();
      rate.step();
      progress.advance(global_batch, [&] { return "loss " + fixed(tally.score().loss, 4); });
    }
    while (batch != loader->end()) ++batch;  // skips batches that do not fill a step

    const lockstep::Score score = tally.score(world);
    const double seconds = program::seconds_since(begin);
    log.end_interval(rate.steps(), tally.score().samples);
    program::record(metrics, log, rate.steps(),
                    {{"epoch", epoch},
                     {"train_loss", score.loss},
                     {"train_accuracy", score.accuracy},
                     {"steps", rate.steps()},
                     {"seconds", seconds}});
    progress.finish(title + "  loss " + fixed(score.loss, 4) + "  accuracy " +
                    fixed(100 * score.accuracy, 2) + " %  " + fixed(seconds, 1) + " s");
  }
  program::finish(log, "large_batch");
  if (settings.verbose) program::print_statistics(world);
}

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app(
      "Trains on MNIST with several forwards and backwards a step. Start it with: lockstep run -n "
      "2 "
      "large_batch",
      "large_batch");
  app.add_option("--epochs", settings.epochs, "Epochs")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--batch-size", settings.batch_size, "Images a rank and forward")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--accumulate", settings.accumulate, "Forwards and backwards a step")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--lr", settings.lr, "Learning rate for 64 images a step; scaled to the batch")
      ->check(program::positive())
      ->capture_default_str();
  app.add_option("--warm-up", settings.warm_up, "Steps from that rate to the scaled one")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app.add_flag("--autocast", settings.autocast, "Compute in bfloat16 where it gains");
  app.add_option("--seed", settings.seed, "Decides weights and order")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--images", settings.images, "Train with so many of the images; 0 for all")
      ->capture_default_str();
  program::add_mnist_folder(app, settings.data);
  program::add_strategy(app, settings.strategy);
  app.add_option("--metrics", settings.metrics, "File for one JSON object an epoch");
  program::add_log_options(app, settings.log);
  program::add_world(app);
  program::add_output(app, settings.quiet, settings.verbose);
  return program::run(app, argc, argv,
                      [&](const lockstep::Group& world) { train(settings, world); });
}
