#pragma once

// Training on windows of a sequence, for language_model and forecast: options, data and the loop
// over epochs. Each program adds its model, loss and evaluation.

#include <lockstep/lockstep.h>
#include <torch/nn.h>
#include <torch/optim/adamw.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "program.h"

namespace program {

/// Values of the options that both programs have.
struct Training {
  std::int64_t epochs = 0;
  std::int64_t batch_size = 0;  ///< windows a step, of all ranks
  double lr = 0;
  std::uint64_t seed = 0;
  std::string checkpoint_dir = {};
  std::string metrics = {};
  LogFlags log = {};
  std::string strategy = "fp32";
  int threads = 0;
  bool quiet = false;
  bool verbose = false;
  bool no_efficiency = false;
};

/// For options that take a number of things.
inline CLI::Option* add_count(CLI::App& app, const char* name, std::int64_t& value,
                              const char* description, std::int64_t least = 1) {
  return app.add_option(name, value, description)
      ->check(CLI::Range(least, std::int64_t{1'000'000}))
      ->capture_default_str();
}

inline void add_training(CLI::App& app, Training& training) {
  add_count(app, "--epochs", training.epochs,
            "Passes over the training part, those of a resumed checkpoint included");
  add_count(app, "--batch-size", training.batch_size, "Windows a step, divided over the ranks");
  app.add_option("--lr", training.lr, "AdamW's learning rate")
      ->check(positive())
      ->capture_default_str();
  app.add_option("--seed", training.seed, "Decides weights and order")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  add_strategy(app, training.strategy);
  add_threads(app, training.threads);
  add_world(app);
  add_checkpoint_dir(app, training.checkpoint_dir);
  app.add_option("--metrics", training.metrics, "File for one JSON object a line");
  add_log_options(app, training.log);
  add_output(app, training.quiet, training.verbose);
  app.add_flag("--no-efficiency", training.no_efficiency,
               "Do not measure one rank against all ranks at the end");
}

/// A dataset of windows of equal length. Window i begins at element first + i·stride of a sequence.
/// A batch is a tensor of (windows, length).
class Windows {
 public:
  using BatchType = at::Tensor;

  Windows(at::Tensor sequence, std::int64_t first, std::int64_t stride, std::int64_t length)
      : sequence_(std::move(sequence)), first_(first), stride_(stride), length_(length) {}

  std::size_t size() const {
    const std::int64_t spare = sequence_.size(0) - first_ - length_;
    return spare < 0 ? 0 : static_cast<std::size_t>(spare / stride_ + 1);
  }

  at::Tensor get_batch(c10::ArrayRef<std::size_t> indices) const {
    std::vector<at::Tensor> windows;
    windows.reserve(indices.size());
    for (const std::size_t index : indices)
      windows.push_back(
          sequence_.narrow(0, first_ + static_cast<std::int64_t>(index) * stride_, length_));
    return at::stack(windows);
  }

 private:
  at::Tensor sequence_;
  std::int64_t first_;
  std::int64_t stride_;
  std::int64_t length_;
};

/// This rank's windows of an evaluation: every window goes to exactly one rank.
inline auto evaluation_batches(const Windows& windows, const lockstep::Group& world) {
  return lockstep::PrefetchLoader(windows, lockstep::EvaluationSampler(windows.size(), world),
                                  {.batch_size = 64, .workers = 0});
}

/// Writes values to --metrics and to --run-log.
using Record = std::function<void(MetricsFile::Values)>;

struct Evaluation {
  double error = 0;  ///< lower is better
  std::string text;
};

/// Trains the model of a problem and returns it. A problem has these members:
///
///     using Model = …;  // a torch::nn::Module
///     static constexpr const char* name = …;  // of the program
///     std::shared_ptr<Model> make_model() const;
///     const Windows& training_windows() const;
///     at::Tensor loss(Model&, const at::Tensor& batch) const;
///     Evaluation evaluate(Model&, const lockstep::Group&, std::int64_t epoch,
///                         const Record&) const;
///
/// Every step has batch_size windows, whatever the number of ranks. The windows at the end of an
/// epoch that fill no step are left out.
/// Ranks: all.
template <class Problem>
std::shared_ptr<typename Problem::Model> train(const Training& training, const Problem& problem,
                                               const lockstep::Group& world) {
  using Model = typename Problem::Model;
  if (training.batch_size % world.size() != 0)
    throw lockstep::InvalidArgument("--batch-size " + std::to_string(training.batch_size) +
                                    ": expected a multiple of the " + plural(world.size(), "rank") +
                                    ". Choose another batch size or number of ranks.");
  const auto batch_size = static_cast<std::size_t>(training.batch_size / world.size());
  const auto batches_an_epoch =
      static_cast<std::int64_t>(problem.training_windows().size()) / training.batch_size;
  if (batches_an_epoch == 0)
    throw lockstep::InvalidArgument(
        "--batch-size " + std::to_string(training.batch_size) +
        ": the training part of --data has " + plural(problem.training_windows().size(), "window") +
        ", expected at least one batch of them. Lower --batch-size or give more data.");

  // Checks everything before the first step, so that all ranks raise the same error.
  std::optional<MetricsFile> metrics;
  CheckpointDir folder(training.checkpoint_dir);
  lockstep::all_or_none(world, [&] {
    if (world.rank() == 0) metrics.emplace(training.metrics, folder.newest().has_value());
  });
  folder.prepare(world);
  lockstep::RunLog log(world, log_options(training.log, training.strategy));

  std::shared_ptr<Model> model;
  world.in_turn([&] {  // ranks that are threads share one random generator
    torch::manual_seed(training.seed);
    model = problem.make_model();
  });
  model->to(world.device());
  const torch::optim::AdamWOptions options(training.lr);
  const lockstep::Strategy strategy = lockstep::parse_strategy(training.strategy);
  torch::optim::AdamW adam(model->parameters(), options);
  lockstep::DistributedOptimizer optimizer(adam, *model, world, strategy);
  const lockstep::Checkpoint checkpoint{.model = *model, .optimizer = adam, .strategy = optimizer};
  const auto style = lockstep::progress_style(world, STDOUT_FILENO, training.quiet);
  const bool loud = style != lockstep::ProgressStyle::silent;
  const auto found = folder.load_newest(checkpoint, world, loud);
  const std::int64_t done = found ? found->meta.epoch : 0;

  // Dropping the tail keeps the windows of each step the same for every number of ranks.
  lockstep::DistributedSampler sampler(problem.training_windows().size(), world,
                                       {.seed = training.seed, .tail = lockstep::Tail::drop});
  sampler.set_epoch(static_cast<std::uint64_t>(done));
  lockstep::PrefetchLoader loader(problem.training_windows(), sampler,
                                  {.batch_size = batch_size, .workers = 0, .drop_last = true});
  std::int64_t steps = done * batches_an_epoch;
  if (found) steps = steps_before(found->meta, steps);
  const auto evaluate = [&](std::int64_t epoch) {
    optimizer.synchronize();
    const torch::NoGradGuard no_grad;
    model->eval();
    Evaluation evaluation = problem.evaluate(*model, world, epoch, [&](MetricsFile::Values values) {
      record(metrics, log, steps, values);
    });
    model->train();
    return evaluation;
  };
  if (!found) {
    const Evaluation untrained = evaluate(0);
    if (loud) std::cout << "before training  " << untrained.text << std::endl;
  }
  for (std::int64_t epoch = done + 1; epoch <= training.epochs; ++epoch) {
    const std::string title =
        "epoch " + std::to_string(epoch) + "/" + std::to_string(training.epochs);
    lockstep::Progress progress(std::cout, style, title, batches_an_epoch * training.batch_size,
                                "windows");
    lockstep::Mean loss_mean;
    const auto begin = Clock::now();
    log.begin_interval(steps);
    for (const at::Tensor& batch : loader) {
      optimizer.zero_grad();
      const at::Tensor loss = problem.loss(*model, batch.to(world.device()));
      loss.backward();
      optimizer.step();
      loss_mean.add(loss, static_cast<double>(batch.size(0)));
      ++steps;
      progress.advance(training.batch_size, [&] { return "loss " + fixed(loss_mean.value(), 4); });
    }
    const double seconds = seconds_since(begin);
    const std::int64_t trained = batches_an_epoch * static_cast<std::int64_t>(batch_size);
    const double rate = lockstep::throughput(trained, seconds, world);
    log.end_interval(steps, trained);
    const double train_loss = lockstep::compute(world, loss_mean);
    record(metrics, log, steps,
           {{"epoch", epoch},
            {"train_loss", train_loss},
            {"seconds", seconds},
            {"windows_per_second", rate},
            {"ranks", world.size()}});
    const Evaluation evaluation = evaluate(epoch);
    folder.save(checkpoint,
                {.epoch = epoch, .notes = steps_note(steps), .score = -evaluation.error});
    progress.finish(title + "  loss " + fixed(train_loss, 4) + "  " + evaluation.text + "  " +
                    fixed(rate, 0) + " windows/s  " + fixed(seconds, 1) + " s");
  }
  folder.finish();

  log.close();
  if (training.verbose) print_statistics(world);
  if (!training.no_efficiency && !training.quiet && world.size() > 1) {
    const at::Tensor batch = loader.begin()->to(world.device());
    const auto alone = problem.make_model();
    const auto replica = problem.make_model();
    for (const auto& made : {alone, replica}) made->to(world.device());
    torch::optim::AdamW alone_adam(alone->parameters(), options);
    torch::optim::AdamW replica_adam(replica->parameters(), options);
    lockstep::DistributedOptimizer together(replica_adam, *replica, world, strategy);
    const auto step = [&](Model& trained, auto& stepped) {
      stepped.zero_grad();
      problem.loss(trained, batch).backward();
      stepped.step();
    };
    const auto measured = lockstep::measure_efficiency(
        world, [&] { step(*alone, alone_adam); }, [&] { step(*replica, together); });
    record(log, steps, measured);
    if (loud) std::cout << lockstep::to_text(measured, world.size()) << std::endl;
  }
  finish(log, Problem::name);
  return model;
}

}  // namespace program
