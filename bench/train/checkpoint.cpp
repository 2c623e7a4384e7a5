// Times how long saving a checkpoint keeps the training waiting: written at once, written behind
// the training, and beside both a plain copy of as many bytes. Also times loading it. In turns.
//
//   lockstep run -n 2 bench_checkpoint [--parameters N] [--unprepared]
//
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <lockstep/lockstep.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iomanip>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "bench/clock.h"
#include "largest.h"

namespace lockstep::bench::checkpoint {
namespace {

struct Settings {
  std::int64_t parameters = 25'000'000;
  bool unprepared = false;
  int rounds = 7;
  std::string folder = ".";
};

/// As many parameters as wanted, in layers as those of ResNet-50.
torch::nn::Sequential model_of(std::int64_t parameters) {
  constexpr std::int64_t width = 500;
  torch::nn::Sequential model;
  for (std::int64_t left = parameters; left > 0; left -= width * width) {
    auto options =
        torch::nn::LinearOptions(width, std::clamp(left / width, std::int64_t{1}, width));
    model->push_back(torch::nn::Linear(options.bias(false)));
  }
  return model;
}

void run(const Settings& settings, const lockstep::Group& world) {
  auto model = model_of(settings.parameters);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  const lockstep::Checkpoint checkpoint{.model = *model, .optimizer = optimizer};
  lockstep::CheckpointWriter writer(world);
  if (!settings.unprepared) {
    writer.prepare(checkpoint);
    writer.wait();
  }
  for (const auto& parameter : model->parameters())
    parameter.mutable_grad() = at::zeros_like(parameter);
  optimizer.step();
  std::size_t bytes = 0;
  for (const auto& parameter : model->parameters()) bytes += parameter.nbytes();

  const std::vector<char> from(bytes, 1);
  std::vector<char> to(bytes);
  const auto file = std::filesystem::path(settings.folder) / "bench_checkpoint.safetensors";
  std::vector<Timed> all{{"a copy of as many bytes",
                          [&] {
                            if (world.rank() == 0) std::memcpy(to.data(), from.data(), bytes);
                          }},
                         {"save behind the training", [&] { writer.save(checkpoint, file); }},
                         {"wait for that file", [&] { writer.wait(); }},
                         {"save at once", [&] { checkpoint.save(file, {}, world); }},
                         {"load", [&] { checkpoint.load(file, world); }}};
  take_turns(all, settings.rounds, world);
  if (world.rank() > 0) return;
  std::filesystem::remove(file);
  std::cout << "| " << bytes / 1e6 << " MB, " << world.size()
            << " ranks | ms | copies | the first time, ms |\n|---|---|---|---|\n"
            << std::fixed << std::setprecision(1);
  for (const auto& timed : all) {
    const double seconds = median(timed.seconds);
    std::cout << "| " << timed.name << " | " << 1000 * seconds << " | "
              << seconds / median(all.front().seconds) << " | " << 1000 * timed.first << " |\n";
  }
}

}  // namespace

std::function<void()> program(CLI::App& command) {
  const auto settings = std::make_shared<Settings>();
  command.add_option("--parameters", settings->parameters, "float32 parameters of the model")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_flag("--unprepared", settings->unprepared,
                   "Take memory for the copy in the first save, and not before");
  command.add_option("--rounds", settings->rounds, "Turns, whose medians count")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      .add_option("--folder", settings->folder, "Where the file is written, and removed at the end")
      ->capture_default_str();
  return [=] { run(*settings, lockstep::init()); };
}

}  // namespace lockstep::bench::checkpoint
