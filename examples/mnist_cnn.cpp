// Trains SINGA's convolutional network on MNIST, on any number of ranks:
//
//   lockstep run -n 2 mnist_cnn --epochs 10
//   lockstep run -n 2 mnist_cnn --dist-option sparseTopK --spars 0.05
//   lockstep run -n 2 --max-restarts 3 mnist_cnn --checkpoint-dir run
//   mnist_cnn --threads 2
//
// SINGA's program for several threads of one process is called mnist_multithread. Under that name,
// this program takes the number of threads as its argument: mnist_multithread 2.
#include <lockstep/lockstep.h>
#include <torch/data/dataloader.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "program.h"

#ifndef MNIST_SAMPLE
#define MNIST_SAMPLE "examples/data/mnist"
#endif

namespace nn = torch::nn;
using nn::functional::cross_entropy;
using Batch = torch::data::Example<>;
using program::Clock;
using program::fixed;
using program::seconds_since;

struct Cnn : nn::Module {
  Cnn() {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("linear1", linear1);
    register_module("linear2", linear2);
    const torch::NoGradGuard no_grad;
    // SINGA's initial values: normal weights of variance 2 / (inputs of a unit + outputs of the
    // layer), biases 0.
    for (const auto& parameter : parameters()) {
      const double fan_in_and_out = parameter.numel() / parameter.size(0) + parameter.size(0);
      parameter.dim() > 1 ? parameter.normal_(0, std::sqrt(2 / fan_in_and_out)) : parameter.zero_();
    }
  }

  at::Tensor forward(at::Tensor x) {
    x = x.to(conv1->weight.scalar_type());
    x = torch::max_pool2d(torch::relu(conv1(x)), 2);
    x = torch::max_pool2d(torch::relu(conv2(x)), 2);
    return linear2(torch::relu(linear1(x.flatten(1)))).to(at::kFloat);
  }

  nn::Conv2d conv1{nn::Conv2dOptions(1, 20, 5)};
  nn::Conv2d conv2{nn::Conv2dOptions(20, 50, 5)};
  nn::Linear linear1{800, 500};
  nn::Linear linear2{500, 10};
};

struct Settings {
  std::int64_t epochs = 10;
  std::int64_t batch_size = 64;
  std::optional<double> lr;           // default: the resumed checkpoint's, or 0.005
  std::optional<std::uint64_t> seed;  // default: the resumed checkpoint's, or 0
  std::string data = MNIST_SAMPLE;
  std::string checkpoint = "mnist_cnn.safetensors";
  std::string checkpoint_dir;
  std::string resume;
  std::string metrics;
  std::optional<double> ema;
  std::optional<std::int64_t> patience;
  program::LogFlags log;
  std::string dist_option;
  std::optional<double> spars;
  std::string strategy = "fp32";
  std::string bf16;
  bool contiguous = false;
  bool augment = false;
  int threads = 0;
  bool quiet = false;
  bool verbose = false;
  bool no_efficiency = false;
};

/// The strategy from --strategy, or from SINGA's --dist-option and --spars.
std::string strategy_of(const Settings& settings) {
  if (settings.dist_option.empty()) return settings.strategy;
  if (!settings.dist_option.starts_with("sparse")) return settings.dist_option;
  std::ostringstream spars;
  spars << std::setprecision(std::numeric_limits<double>::max_digits10)
        << settings.spars.value_or(0.05);
  return settings.dist_option + ":" + spars.str();
}

/// bf16: the value of --bf16.
std::unique_ptr<torch::optim::SGD> make_sgd(Cnn& model, double lr, const std::string& bf16) {
  const auto options = torch::optim::SGDOptions(lr).momentum(0.9).weight_decay(1e-5);
  if (bf16.empty()) return std::make_unique<torch::optim::SGD>(model.parameters(), options);
  return std::make_unique<lockstep::FusedSgd>(model.parameters(), options,
                                              lockstep::parse_low_precision(bf16));
}

/// One training step, with LibTorch's optimizer or a DistributedOptimizer.
void step(Cnn& model, auto& optimizer, const Batch& batch, lockstep::Tally& tally) {
  optimizer.zero_grad();
  const at::Tensor outputs = model.forward(batch.data);
  const at::Tensor loss = cross_entropy(outputs, batch.target);
  loss.backward();
  optimizer.step();
  tally.add(loss, outputs, batch.target);
}

lockstep::Score evaluate(Cnn& model, auto& loader, const lockstep::Group& world) {
  const torch::NoGradGuard no_grad;
  model.eval();
  lockstep::Tally tally;
  for (const Batch& loaded : loader) {
    const Batch batch = program::on_device(loaded, world);
    const at::Tensor outputs = model.forward(batch.data);
    tally.add(cross_entropy(outputs, batch.target), outputs, batch.target);
  }
  model.train();
  return tally.score(world);
}

/// Size of the gradients, or parameters, that this rank has exchanged so far. Units: 10^6 bytes.
double gradient_megabytes(const lockstep::Group& world) {
  double bytes = 0;
  for (const auto& row : world.statistics()) {
    if (row.bucket >= 0) bytes += static_cast<double>(row.bytes);
  }
  return bytes / 1e6;
}

/// Measures with copies of the model and one batch over and over.
lockstep::Efficiency measure_efficiency(const Cnn& trained, double lr, const std::string& bf16,
                                        const Batch& batch, const lockstep::Strategy& strategy,
                                        const lockstep::Group& world) {
  const auto copy_of_trained = [&] {
    const torch::NoGradGuard no_grad;
    auto copy = std::make_shared<Cnn>();
    copy->to(world.device(), trained.conv1->weight.scalar_type());
    for (const auto& item : trained.named_parameters())
      copy->named_parameters()[item.key()].copy_(item.value());
    return copy;
  };
  const auto single = copy_of_trained();
  const auto replica = copy_of_trained();
  const auto single_sgd = make_sgd(*single, lr, bf16);
  const auto replica_sgd = make_sgd(*replica, lr, bf16);
  lockstep::DistributedOptimizer optimizer(*replica_sgd, *replica, world, strategy);
  lockstep::Tally ignored;
  return lockstep::measure_efficiency(
      world, [&] { step(*single, *single_sgd, batch, ignored); },
      [&] { step(*replica, optimizer, batch, ignored); });
}

/// The newest undamaged checkpoint in --checkpoint-dir, or else the one of --resume, if any.
std::optional<lockstep::Resumed> resume(const Settings& settings,
                                        const lockstep::Checkpoint& checkpoint,
                                        program::CheckpointDir& folder,
                                        const lockstep::Group& world, bool loud) {
  if (auto found = folder.load_newest(checkpoint, world, loud)) return found;
  if (settings.resume.empty()) return std::nullopt;
  lockstep::Resumed found = checkpoint.load(settings.resume, world);
  const std::int64_t done = found.meta.epoch;
  if (done >= settings.epochs)
    throw lockstep::InvalidArgument(settings.resume + ": " + program::epochs_done(done) +
                                    ", expected fewer than --epochs " +
                                    std::to_string(settings.epochs));
  if (loud && !found.changes.empty())
    std::cout << settings.resume << ": " << found.changes << std::endl;
  if (loud && folder)
    std::cout << settings.resume << ": " << program::epochs_done(done) << std::endl;
  return found;
}

void train(Settings settings, const lockstep::Group& world) {
  // Checks everything before the first step, so that all ranks raise the same error.
  std::optional<lockstep::Mnist> train_data;
  std::optional<lockstep::Mnist> test_data;
  std::optional<program::MetricsFile> metrics;
  program::CheckpointDir folder(settings.checkpoint_dir);
  bool added = false;  // rank 0's: the run continues an existing log
  lockstep::all_or_none(world, [&] {
    train_data.emplace(settings.data, lockstep::Mnist::Split::train);
    test_data.emplace(settings.data, lockstep::Mnist::Split::test);
    if (world.rank() != 0) return;
    added = !settings.resume.empty() || folder.newest();
    metrics.emplace(settings.metrics, added);
  });
  folder.prepare(world);
  if (!folder && !settings.checkpoint.empty())
    lockstep::check_checkpoint_path(settings.checkpoint, world);
  lockstep::RunLog log(world, program::log_options(settings.log, strategy_of(settings)));

  std::shared_ptr<Cnn> model;
  world.in_turn([&] {  // ranks that are threads share one random generator
    torch::manual_seed(settings.seed.value_or(0));
    model = std::make_shared<Cnn>();
  });
  model->to(world.device(), settings.bf16.empty() ? at::kFloat : at::kBFloat16);
  const auto sgd = make_sgd(*model, settings.lr.value_or(0.005), settings.bf16);
  const lockstep::Strategy strategy = lockstep::parse_strategy(strategy_of(settings));
  lockstep::DistributedOptimizer optimizer(*sgd, *model, world, strategy);
  lockstep::Checkpoint checkpoint{.model = *model, .optimizer = *sgd, .strategy = optimizer};
  std::optional<lockstep::MovingAverage> average;
  std::optional<lockstep::EarlyStopping> stopping;
  if (settings.ema) {
    if (world.size() > 1 && !strategy.exchanges_every_gradient())
      throw lockstep::InvalidArgument("--ema: got --strategy " + strategy.text() +
                                      ", with which the averages of the ranks differ, expected a "
                                      "strategy that exchanges every gradient at every step");
    average.emplace(*model, lockstep::MovingAverageOptions{.decay = *settings.ema});
    checkpoint.extra.emplace("average", *average);
  }
  if (settings.patience) {
    stopping.emplace(lockstep::EarlyStoppingOptions{.patience = *settings.patience,
                                                    .mode = lockstep::Best::greatest});
    checkpoint.extra.emplace("early_stopping", *stopping);
  }
  const auto style = lockstep::progress_style(world, STDOUT_FILENO, settings.quiet);
  const bool loud = style != lockstep::ProgressStyle::silent;
  std::int64_t done = 0;
  const auto resumed = resume(settings, checkpoint, folder, world, loud);
  if (resumed) {
    done = resumed->meta.epoch;
    if (!settings.seed && resumed->meta.notes.contains("seed"))
      settings.seed = std::stoull(resumed->meta.notes.at("seed"));
    if (settings.lr) sgd->param_groups()[0].options().set_lr(*settings.lr);
  }
  const std::uint64_t seed = settings.seed.value_or(0);
  const double lr = sgd->param_groups()[0].options().get_lr();
  const auto batch_size = static_cast<std::size_t>(settings.batch_size);

  lockstep::Augmented varied(
      *train_data, settings.augment ? lockstep::AugmentOptions{.seed = seed}
                                    : lockstep::AugmentOptions{.seed = 0, .pad = 0, .flip = false});
  // Each rank samples its own contiguous part, or its share of a permutation of all images.
  const std::size_t size = train_data->size().value();
  auto drawn_from = settings.contiguous ? lockstep::partition_dataset(varied, world)
                                        : lockstep::DatasetPart(varied, {.first = 0, .last = size});
  auto sampler = settings.contiguous
                     ? lockstep::DistributedSampler(drawn_from.size().value(),
                                                    lockstep::ShardSpec{}, {.seed = seed})
                     : lockstep::DistributedSampler(size, world, {.seed = seed});
  sampler.set_epoch(static_cast<std::uint64_t>(done));
  // Loader threads augment images while the previous step runs.
  lockstep::PrefetchLoader loader(
      drawn_from, sampler,
      {.batch_size = batch_size, .workers = settings.augment ? std::size_t{1} : std::size_t{0}});
  auto test_loader = torch::data::make_data_loader(
      *test_data, lockstep::EvaluationSampler(test_data->size().value(), world), batch_size);

  std::int64_t steps = done * ((sampler.samples_per_rank() + batch_size - 1) / batch_size);
  if (resumed) steps = program::steps_before(resumed->meta, steps);
  const auto stopped = [&] { return stopping && stopping->stopped(); };
  for (std::int64_t epoch = done + 1; epoch <= settings.epochs && !stopped(); ++epoch) {
    const std::string title =
        "epoch " + std::to_string(epoch) + "/" + std::to_string(settings.epochs);
    const auto images = static_cast<std::int64_t>(sampler.samples_per_rank()) * world.size();
    lockstep::Progress progress(std::cout, style, title, images, "images");
    lockstep::Tally tally;
    const auto begin = Clock::now();
    varied.set_epoch(static_cast<std::uint64_t>(epoch));
    log.begin_interval(steps);
    for (const Batch& loaded : loader) {
      const Batch batch = program::on_device(loaded, world);
      step(*model, optimizer, batch, tally);
      if (average) average->update();
      ++steps;
      progress.advance(batch.target.size(0) * world.size(),
                       [&] { return "loss " + fixed(tally.score().loss, 4); });
    }
    const lockstep::Score trained = tally.score(world);
    const double seconds = seconds_since(begin);
    const double rate = lockstep::throughput(tally.score().samples, seconds, world);
    log.end_interval(steps, tally.score().samples);
    // SINGA prints the sum of the losses of all batches.
    const double loss_sum = trained.loss * static_cast<double>(trained.samples) /
                            static_cast<double>(settings.batch_size);
    optimizer.synchronize();
    std::optional<lockstep::AppliedAverage> averaged;
    if (average) averaged.emplace(*average);
    const lockstep::Score tested = evaluate(*model, *test_loader, world);
    averaged.reset();
    if (stopping) stopping->update(tested.accuracy, world);

    program::record(metrics, log, steps,
                    {{"epoch", epoch},
                     {"train_loss", trained.loss},
                     {"train_loss_sum", loss_sum},
                     {"train_accuracy", trained.accuracy},
                     {"test_accuracy", tested.accuracy},
                     {"seconds", seconds},
                     {"images_per_second", rate},
                     {"gradient_megabytes", gradient_megabytes(world)},
                     {"ranks", world.size()}});
    lockstep::CheckpointMeta meta{
        .epoch = epoch, .notes = program::steps_note(steps), .score = tested.accuracy};
    meta.notes["seed"] = std::to_string(seed);
    if (folder)
      folder.save(checkpoint, meta);
    else if (!settings.checkpoint.empty())
      checkpoint.save(settings.checkpoint, meta, world);
    progress.finish(title + "  loss " + fixed(trained.loss, 4) + " (sum " + fixed(loss_sum, 1) +
                    ")  train " + fixed(100 * trained.accuracy, 2) + " %  test " +
                    fixed(100 * tested.accuracy, 2) + " %  " + fixed(rate, 0) + " images/s  " +
                    fixed(seconds, 1) + " s");
  }

  if (loud && stopped())
    std::cout << "stopped: no better test accuracy in "
              << program::plural(stopping->waited(), "epoch") << std::endl;
  folder.finish();
  log.close();
  if (settings.verbose) program::print_statistics(world);
  if (!settings.no_efficiency && !settings.quiet && world.size() > 1) {
    const auto measured = measure_efficiency(
        *model, lr, settings.bf16, program::on_device(*loader.begin(), world), strategy, world);
    program::record(log, steps, measured);
    if (loud) std::cout << lockstep::to_text(measured, world.size()) << std::endl;
  }
  program::finish(log, "mnist_cnn");
  if (folder) settings.checkpoint = folder.newest().value_or("").string();
  if (loud && !settings.checkpoint.empty())
    std::cout << "checkpoint " << std::filesystem::absolute(settings.checkpoint).string()
              << std::endl;
}

void add_options(CLI::App& app, Settings& settings) {
  app.add_option("--epochs", settings.epochs,
                 "Epochs in all, those of a resumed checkpoint included")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--batch-size", settings.batch_size, "Images a rank and step")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--lr", settings.lr, "Learning rate [0.005, or the resumed checkpoint's]")
      ->check(program::positive());
  app.add_option("--seed", settings.seed,
                 "Decides weights and order [0, or the resumed checkpoint's]")
      ->check(CLI::NonNegativeNumber);
  program::add_mnist_folder(app, settings.data);
  auto* checkpoint =
      app.add_option("--checkpoint", settings.checkpoint, "Written after every epoch; '' for none")
          ->capture_default_str();
  program::add_checkpoint_dir(app, settings.checkpoint_dir)->excludes(checkpoint);
  app.add_option("--resume", settings.resume,
                 "Checkpoint to go on from, unless --checkpoint-dir has one");
  app.add_option("--metrics", settings.metrics, "File for one JSON object an epoch");
  app.add_option("--ema", settings.ema,
                 "Test with the moving average of the parameters, of this decay, such as 0.999")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--patience", settings.patience,
                 "Stop after so many epochs without a better test accuracy")
      ->check(CLI::Range(1, 1'000'000));
  program::add_log_options(app, settings.log);
  auto* strategy = program::add_strategy(app, settings.strategy);
  auto* dist_option = app.add_option("--dist-option,--dist_option", settings.dist_option,
                                     "The same by SINGA's names")
                          ->check(CLI::IsMember({"plain", "fp32", "half", "fp16", "partialUpdate",
                                                 "sparseTopK", "sparseThreshold"}))
                          ->excludes(strategy);
  app.add_option("--spars", settings.spars,
                 "With sparseTopK the part of the gradients that is sent, with sparseThreshold the "
                 "least magnitude [0.05]")
      ->check(program::positive())
      ->needs(dist_option);
  program::add_bf16(app, settings.bf16);
  app.add_flag("--contiguous", settings.contiguous,
               "Each rank trains with a part of the images in a row, and with no others");
  app.add_flag("--augment", settings.augment, "Pad, crop and flip the images at random");
  program::add_world(app);
  program::add_output(app, settings.quiet, settings.verbose);
  app.add_flag("--no-efficiency", settings.no_efficiency,
               "Do not measure one rank against all ranks at the end");
}

int main(int argc, char** argv) {
  Settings settings;
  const bool multithread = std::filesystem::path(argv[0]).filename() == "mnist_multithread";
  const std::string name = multithread ? "mnist_multithread" : "mnist_cnn";
  CLI::App app("Trains SINGA's convolutional network on MNIST. Start it with: " +
                   (multithread ? name + " 2" : "lockstep run -n 2 " + name),
               name);
  add_options(app, settings);
  program::add_threads(app, settings.threads, multithread ? "threads" : "--threads")
      ->required(multithread);
  app.parse_complete_callback([&] {
    if (settings.spars && !settings.dist_option.starts_with("sparse"))
      throw CLI::ValidationError(
          "--spars", "goes with sparseTopK and sparseThreshold only, got --dist-option " +
                         settings.dist_option);
    if (const auto wrong = program::strategy()(strategy_of(settings)); !wrong.empty())
      throw CLI::ValidationError("--spars", wrong);
  });
  return program::run(
      app, argc, argv, [&](const lockstep::Group& world) { train(settings, world); },
      settings.threads);
}
