// Shows numerically that the mean of the ranks' gradients is the gradient of the whole batch, which
// Needle derives. For parts of unequal sizes, the mean must be weighted by those sizes.
//
//   lockstep run -n 3 gradient_proof
//   gradient_proof --threads 7
//
#include <lockstep/lockstep.h>
#include <torch/nn.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "program.h"

#ifndef MNIST_SAMPLE
#define MNIST_SAMPLE "examples/data/mnist"
#endif

namespace nn = torch::nn;
using nn::functional::cross_entropy;
using Batch = torch::data::Example<>;

struct Settings {
  std::int64_t images = 60;
  std::uint64_t seed = 0;
  std::string data = MNIST_SAMPLE;
  std::string strategy = "fp32";
  std::string metrics;
  program::LogFlags log;
  int threads = 0;
  bool quiet = false;
};

/// No layer combines several images, as BatchNorm would. So the loss of a batch is the mean of its
/// images' losses, which the derivation assumes.
nn::Sequential make_model() {
  nn::Sequential model(nn::Conv2d(1, 8, 5), nn::Tanh(), nn::MaxPool2d(4), nn::Flatten(),
                       nn::Linear(288, 32), nn::Tanh(), nn::Linear(32, 10));
  model->to(at::kDouble);
  return model;
}

/// Number of images per rank. unequal: proportional to r + 1 for rank r.
std::vector<std::int64_t> sizes_of_parts(std::int64_t images, int ranks, bool unequal) {
  const std::int64_t shares = unequal ? std::int64_t{ranks} * (ranks + 1) / 2 : ranks;
  std::vector<std::int64_t> sizes;
  std::int64_t begin = 0;
  for (std::int64_t rank = 1; rank <= ranks; ++rank) {
    const std::int64_t end = images * (unequal ? rank * (rank + 1) / 2 : rank) / shares;
    sizes.push_back(end - begin);
    begin = end;
  }
  return sizes;
}

std::string listed(const std::vector<std::int64_t>& sizes) {
  std::ostringstream out;
  for (const std::int64_t size : sizes) out << ' ' << size;
  return out.str();
}

/// The largest difference of an element from that of the whole batch's gradient, over all ranks.
double difference(const nn::Sequential& wrapped, const nn::Sequential& whole,
                  const lockstep::Group& world) {
  at::Tensor largest = torch::zeros({1}, at::kDouble);
  for (std::size_t i = 0; i < whole->parameters().size(); ++i) {
    const at::Tensor apart = wrapped->parameters()[i].grad() - whole->parameters()[i].grad();
    largest = torch::max(largest, apart.abs().max());
  }
  world.all_reduce(largest, lockstep::ReduceOp::max).wait();
  return largest.item<double>();
}

void prove(const Settings& settings, const lockstep::Group& world) {
  const std::int64_t fewest = std::int64_t{world.size()} * (world.size() + 1) / 2;
  const std::int64_t count = settings.images / world.size() * world.size();
  if (count < fewest)
    throw lockstep::InvalidArgument("--images " + std::to_string(settings.images) +
                                    ": expected at least " + std::to_string(fewest) + " for " +
                                    program::plural(world.size(), "rank") + " of unequal parts");
  std::optional<program::MetricsFile> metrics;
  Batch batch;
  lockstep::all_or_none(world, [&] {
    lockstep::Mnist digits(settings.data);
    std::vector<std::size_t> first(static_cast<std::size_t>(count));
    std::iota(first.begin(), first.end(), std::size_t{0});
    batch = digits.get_batch(first);
    if (world.rank() == 0) metrics.emplace(settings.metrics);
  });
  lockstep::RunLog log(world, program::log_options(settings.log, settings.strategy));
  const bool loud = world.rank() == 0 && !settings.quiet;
  const at::Tensor images = batch.data.to(at::kDouble);

  nn::Sequential whole;
  nn::Sequential wrapped;
  world.in_turn([&] {
    torch::manual_seed(settings.seed);
    whole = make_model();
    torch::manual_seed(settings.seed);
    wrapped = make_model();
  });
  cross_entropy(whole->forward(images), batch.target).backward();
  double scale = 0;
  for (const at::Tensor& parameter : whole->parameters())
    scale = std::max(scale, parameter.grad().abs().max().item<double>());
  if (loud)
    std::cout << "gradient of " << program::plural(count, "digit") << " against that of "
              << program::plural(world.size(), "rank") << ", float64, " << settings.strategy
              << "; largest element " << scale << std::endl;

  lockstep::DistributedDataParallel ddp(wrapped, world,
                                        {.strategy = lockstep::parse_strategy(settings.strategy)});
  double worst = 0;
  std::int64_t steps = 0;
  const auto step = [&](bool unequal, bool weighted, const char* text) {
    const auto sizes = sizes_of_parts(count, world.size(), unequal);
    const auto own = sizes.begin() + world.rank();
    const std::int64_t begin = std::accumulate(sizes.begin(), own, std::int64_t{0});
    log.begin_interval(steps);
    wrapped->zero_grad();
    if (weighted) ddp.weight(static_cast<double>(*own));
    cross_entropy(ddp(images.narrow(0, begin, *own)), batch.target.narrow(0, begin, *own))
        .backward();
    log.end_interval(++steps);
    const double apart = difference(wrapped, whole, world);
    if (weighted || !unequal) worst = std::max(worst, apart);
    program::record(metrics, log, steps,
                    {{"ranks", world.size()},
                     {"unequal", unequal},
                     {"weighted", weighted},
                     {"largest_difference", apart},
                     {"largest_element", scale}});
    if (loud)
      std::cout << "  " << text << "," << listed(sizes) << ": largest difference " << apart
                << std::endl;
  };
  step(false, false, "equal parts");
  step(true, true, "unequal parts, weighted by their sizes");
  if (world.size() > 1) step(true, false, "unequal parts, not weighted");
  program::finish(log, "gradient_proof");

  constexpr double rounding = 1e-12;
  if (settings.strategy == "fp32" && worst > rounding * scale)
    throw lockstep::Error("the gradients differ by " + std::to_string(worst) +
                          ", expected rounding errors only");
}

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app(
      "Compares the mean of all ranks' gradients with the gradient of the whole batch, for equal "
      "and "
      "unequal parts. Start it with: lockstep run -n 3 gradient_proof",
      "gradient_proof");
  app.add_option("--images", settings.images,
                 "Digits in the whole batch, made divisible by the ranks")
      ->check(CLI::Range(1, 60'000))
      ->capture_default_str();
  app.add_option("--seed", settings.seed, "Decides the weights")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  program::add_mnist_folder(app, settings.data);
  program::add_strategy(app, settings.strategy);
  app.add_option("--metrics", settings.metrics, "File for one JSON object a line");
  program::add_log_options(app, settings.log);
  program::add_threads(app, settings.threads);
  program::add_quiet(app, settings.quiet);
  return program::run(
      app, argc, argv, [&](const lockstep::Group& world) { prove(settings, world); },
      settings.threads);
}
