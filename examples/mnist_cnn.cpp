// Trains SINGA's convolutional network on MNIST, on as many ranks as it is started with:
//
//   lockstep run -n 2 mnist_cnn --epochs 10
//
#include <lockstep/lockstep.h>
#include <torch/data/dataloader.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#ifndef MNIST_SAMPLE
#define MNIST_SAMPLE "examples/data/mnist"
#endif

namespace nn = torch::nn;
using nn::functional::cross_entropy;
using Batch = torch::data::Example<>;
using Clock = std::chrono::steady_clock;

struct Cnn : nn::Module {
  Cnn() {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("linear1", linear1);
    register_module("linear2", linear2);
    const torch::NoGradGuard no_grad;
    // As SINGA starts: normal weights whose variance is 2 over a unit's inputs plus the layer's
    // outputs, no bias.
    for (const auto& parameter : parameters()) {
      const double fan_in_and_out = parameter.numel() / parameter.size(0) + parameter.size(0);
      parameter.dim() > 1 ? parameter.normal_(0, std::sqrt(2 / fan_in_and_out)) : parameter.zero_();
    }
  }

  at::Tensor forward(at::Tensor x) {
    x = torch::max_pool2d(torch::relu(conv1(x)), 2);
    x = torch::max_pool2d(torch::relu(conv2(x)), 2);
    return linear2(torch::relu(linear1(x.flatten(1))));
  }

  nn::Conv2d conv1{nn::Conv2dOptions(1, 20, 5)};
  nn::Conv2d conv2{nn::Conv2dOptions(20, 50, 5)};
  nn::Linear linear1{800, 500};
  nn::Linear linear2{500, 10};
};

struct Settings {
  std::int64_t epochs = 10;
  std::int64_t batch_size = 64;
  std::optional<double> lr;           // else the resumed checkpoint's, else 0.005
  std::optional<std::uint64_t> seed;  // else the resumed checkpoint's, else 0
  std::string data = MNIST_SAMPLE;
  std::string checkpoint = "mnist_cnn.safetensors";
  std::string resume;
  std::string metrics;
  int threads = 0;
  bool quiet = false;
  bool no_efficiency = false;
};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::string fixed(double value, int digits) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(digits) << value;
  return out.str();
}

torch::optim::SGD make_sgd(Cnn& model, double lr) {
  return torch::optim::SGD(model.parameters(),
                           torch::optim::SGDOptions(lr).momentum(0.9).weight_decay(1e-5));
}

/// One training step of the model, or of the model wrapped in DistributedDataParallel.
void step(auto& model, torch::optim::SGD& sgd, const Batch& batch, lockstep::Tally& tally) {
  sgd.zero_grad();
  const at::Tensor outputs = model(batch.data);
  const at::Tensor loss = cross_entropy(outputs, batch.target);
  loss.backward();
  sgd.step();
  tally.add(loss, outputs, batch.target);
}

lockstep::Score evaluate(Cnn& model, auto& loader, const lockstep::Group& world) {
  const torch::NoGradGuard no_grad;
  model.eval();
  lockstep::Tally tally;
  for (const Batch& batch : loader) {
    const at::Tensor outputs = model.forward(batch.data);
    tally.add(cross_entropy(outputs, batch.target), outputs, batch.target);
  }
  model.train();
  return tally.score(world);
}

/// Seconds a step takes one rank alone, and all of them together.
struct StepTimes {
  double alone;
  double together;
};

/// Rank 0 steps alone while the others wait, then all step together, in turns; the medians count.
/// Works on copies of the model, with one batch over and over.
StepTimes step_times(const Cnn& trained, double lr, const Batch& batch,
                     const lockstep::Group& world) {
  constexpr int rounds = 5;
  const auto copy_of_trained = [&] {
    const torch::NoGradGuard no_grad;
    auto copy = std::make_shared<Cnn>();
    for (const auto& item : trained.named_parameters())
      copy->named_parameters()[item.key()].copy_(item.value());
    return copy;
  };
  const auto single = copy_of_trained();
  const auto replica = copy_of_trained();
  auto single_sgd = make_sgd(*single, lr);
  auto replica_sgd = make_sgd(*replica, lr);
  lockstep::DistributedDataParallel ddp(replica, world);
  const auto plain = [&](const at::Tensor& x) { return single->forward(x); };

  lockstep::Tally ignored;
  const auto time = [&](auto& model, torch::optim::SGD& sgd, int steps) {
    const auto begin = Clock::now();
    for (int i = 0; i < steps; ++i) step(model, sgd, batch, ignored);
    return seconds_since(begin) / steps;
  };
  time(ddp, replica_sgd, 2);  // warms up
  const at::Tensor steps = torch::tensor(std::clamp(0.2 / time(ddp, replica_sgd, 2), 1.0, 20.0));
  world.broadcast(steps).wait();  // about a fifth of a second each time, as rank 0 sees it
  const int count = steps.item<int>();
  if (world.rank() == 0) time(plain, single_sgd, 2);

  std::vector<double> alone;
  std::vector<double> together;
  for (int round = 0; round < rounds; ++round) {
    world.barrier().wait();
    alone.push_back(world.rank() == 0 ? time(plain, single_sgd, count) : 0);
    world.barrier().wait();
    together.push_back(time(ddp, replica_sgd, count));
  }
  std::ranges::sort(alone);
  std::ranges::sort(together);
  return {.alone = alone[rounds / 2], .together = together[rounds / 2]};
}

/// One JSON object a line; JSON has no word for what is not a number.
std::string json_line(std::int64_t epoch, const lockstep::Score& train, const lockstep::Score& test,
                      double seconds, double images_per_second, int ranks) {
  std::ostringstream out;
  out << std::setprecision(17);
  const auto number = [&](const char* name, double value) {
    out << ", \"" << name << "\": ";
    std::isfinite(value) ? out << value : out << "null";
  };
  out << "{\"epoch\": " << epoch;
  number("train_loss", train.loss);
  number("train_accuracy", train.accuracy);
  number("test_accuracy", test.accuracy);
  number("seconds", seconds);
  number("images_per_second", images_per_second);
  out << ", \"ranks\": " << ranks << "}";
  return out.str();
}

/// The file of --metrics, written by rank 0. A resumed run adds to it.
class MetricsFile {
 public:
  MetricsFile(const std::string& path, bool resumed) : path_(path) {
    if (path.empty()) return;
    out_.open(path, resumed ? std::ios::app : std::ios::trunc);
    check();
  }
  void write(const std::string& line) {
    if (path_.empty()) return;
    out_ << line << std::endl;
    check();
  }

 private:
  void check() const {
    if (!out_)
      throw lockstep::Error("--metrics " + path_ + ": cannot write: " + std::strerror(errno));
  }
  std::string path_;
  std::ofstream out_;
};

void train(Settings settings, const lockstep::Group& world) {
  // All that can go wrong is found out before the first step, and on all ranks alike.
  std::optional<lockstep::Mnist> train_data;
  std::optional<lockstep::Mnist> test_data;
  std::optional<MetricsFile> metrics;
  lockstep::together(world, [&] {
    train_data.emplace(settings.data, lockstep::Mnist::Split::train);
    test_data.emplace(settings.data, lockstep::Mnist::Split::test);
    if (world.rank() == 0) metrics.emplace(settings.metrics, !settings.resume.empty());
  });
  if (!settings.checkpoint.empty()) lockstep::check_checkpoint_path(settings.checkpoint, world);

  std::shared_ptr<Cnn> model;
  world.in_turn([&] {  // thread ranks share one random generator
    torch::manual_seed(settings.seed.value_or(0));
    model = std::make_shared<Cnn>();
  });
  torch::optim::SGD sgd = make_sgd(*model, settings.lr.value_or(0.005));
  std::int64_t done = 0;
  if (!settings.resume.empty()) {
    const auto meta = lockstep::load_checkpoint(settings.resume, *model, sgd, world);
    done = meta.epoch;
    if (!settings.seed && meta.notes.contains("seed"))
      settings.seed = std::stoull(meta.notes.at("seed"));
    if (settings.lr) sgd.param_groups()[0].options().set_lr(*settings.lr);
    if (done >= settings.epochs)
      throw lockstep::InvalidArgument(settings.resume + ": " + std::to_string(done) +
                                      " epochs are done, expected fewer than --epochs " +
                                      std::to_string(settings.epochs));
  }
  const std::uint64_t seed = settings.seed.value_or(0);
  const double lr = sgd.param_groups()[0].options().get_lr();
  const auto batch_size = static_cast<std::size_t>(settings.batch_size);

  lockstep::DistributedDataParallel ddp(model, world);
  lockstep::DistributedSampler sampler(train_data->size().value(), world, {.seed = seed});
  sampler.set_epoch(static_cast<std::uint64_t>(done));
  auto loader = torch::data::make_data_loader(*train_data, sampler, batch_size);
  auto test_loader = torch::data::make_data_loader(
      *test_data, lockstep::EvaluationSampler(test_data->size().value(), world), batch_size);

  const auto style = lockstep::progress_style(world, STDOUT_FILENO, settings.quiet);
  for (std::int64_t epoch = done + 1; epoch <= settings.epochs; ++epoch) {
    const std::string title =
        "epoch " + std::to_string(epoch) + "/" + std::to_string(settings.epochs);
    const auto images = static_cast<double>(sampler.samples_per_rank()) * world.size();
    lockstep::Progress progress(std::cout, style, title, static_cast<std::int64_t>(images),
                                "images");
    lockstep::Tally tally;
    const auto begin = Clock::now();
    for (const Batch& batch : *loader) {
      step(ddp, sgd, batch, tally);
      progress.advance(batch.target.size(0) * world.size());
    }
    const lockstep::Score trained = tally.score(world);
    const double seconds = seconds_since(begin);
    const lockstep::Score tested = evaluate(*model, *test_loader, world);

    if (!settings.checkpoint.empty())
      lockstep::save_checkpoint(settings.checkpoint, *model, sgd,
                                {.epoch = epoch, .notes = {{"seed", std::to_string(seed)}}}, world);
    if (metrics)
      metrics->write(json_line(epoch, trained, tested, seconds, images / seconds, world.size()));
    progress.finish(title + "  loss " + fixed(trained.loss, 4) + "  train " +
                    fixed(100 * trained.accuracy, 2) + " %  test " +
                    fixed(100 * tested.accuracy, 2) + " %  " + fixed(images / seconds, 0) +
                    " images/s  " + fixed(seconds, 1) + " s");
  }

  const bool loud = style != lockstep::ProgressStyle::silent;
  if (!settings.no_efficiency && !settings.quiet && world.size() > 1) {
    const auto [alone, together] = step_times(*model, lr, *loader->begin(), world);
    if (loud)
      std::cout << "efficiency " << fixed(100 * alone / together, 1) << " %: a step takes one rank "
                << fixed(1000 * alone, 1) << " ms, " << world.size() << " ranks together "
                << fixed(1000 * together, 1) << " ms" << std::endl;
  }
  if (loud && !settings.checkpoint.empty())
    std::cout << "checkpoint " << std::filesystem::absolute(settings.checkpoint).string()
              << std::endl;
}

void add_options(CLI::App& app, Settings& settings) {
  const CLI::Validator positive(
      [](const std::string& text) {
        const double value = std::strtod(text.c_str(), nullptr);
        return std::isfinite(value) && value > 0 ? "" : "expected a positive number, got " + text;
      },
      "POSITIVE");
  app.add_option("--epochs", settings.epochs,
                 "Epochs in all, those of a resumed checkpoint included")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--batch-size", settings.batch_size, "Images a rank and step")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--lr", settings.lr, "Learning rate [0.005, or the resumed checkpoint's]")
      ->check(positive);
  app.add_option("--seed", settings.seed,
                 "Decides weights and order [0, or the resumed checkpoint's]")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--data", settings.data, "Folder with the four MNIST files, plain or .gz")
      ->capture_default_str();
  app.add_option("--checkpoint", settings.checkpoint, "Written after every epoch; '' for none")
      ->capture_default_str();
  app.add_option("--resume", settings.resume, "Checkpoint to go on from");
  app.add_option("--metrics", settings.metrics, "File for one JSON object an epoch");
  app.add_option("--threads", settings.threads,
                 "So many ranks as threads of this process, without a launcher")
      ->check(CLI::Range(1, 512));
  app.add_flag("--quiet", settings.quiet, "Print nothing but errors");
  app.add_flag("--no-efficiency", settings.no_efficiency,
               "Do not measure one rank against all at the end");
}

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app(
      "Trains SINGA's convolutional network on MNIST. Start it with: lockstep run -n 2 mnist_cnn");
  add_options(app, settings);
  std::optional<lockstep::Group> world;
  try {
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      // Every rank was given the same words: one complaint is enough.
      if (lockstep::init().rank() == 0) app.exit(error);
      return error.get_exit_code() == 0 ? 0 : 2;
    }
    if (settings.threads > 0) {
      lockstep::spawn(settings.threads,
                      [&](const lockstep::Group& group) { train(settings, group); },
                      {.timeout = {}, .keep_pages = true});
    } else {
      world = lockstep::init({.timeout = {}, .keep_pages = true});
      train(settings, *world);
    }
    return 0;
  } catch (const lockstep::CommError& error) {
    std::cerr << "mnist_cnn: " << error.what() << std::endl;
  } catch (const lockstep::Error& error) {
    // What fails in Lockstep's other calls fails on all ranks, and rank 0 knows of all.
    if (!world || world->rank() == 0) std::cerr << "mnist_cnn: " << error.what() << std::endl;
  } catch (const std::exception& error) {
    std::cerr << "mnist_cnn: " << error.what() << std::endl;
  }
  return 1;
}
