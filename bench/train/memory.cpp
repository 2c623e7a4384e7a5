// Memory and time of a training step for one option that divides or shares the training state:
// the MLP of 24.2 million parameters with AdamW.
// The memory is the sum of the ranks' proportional set sizes divided by their number, so that a
// page that several ranks map counts once. It is taken between backward and update, when all
// gradients exist, less that before the model was made. A small model has trained before, so that
// the code that a step uses counts as memory of the process. The time alternates with that of a
// training in float32 in which every rank has all state. Rank 0 prints one JSON object.
//
//   lockstep run -n 4 bench_memory --shard optimizer

#include <lockstep/lockstep.h>
#include <torch/nn.h>
#include <torch/optim/adamw.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/clock.h"
#include "largest.h"
#include "models.h"

namespace lockstep::bench::memory {
namespace {

struct Settings {
  std::string shard = "none";
  bool share_memory = false;
  bool fused = false;
  std::string bf16 = {};
  std::int64_t batch_size = 16;
  int rounds = 5;
  int steps = 3;
};

/// Memory of this process. Units: bytes.
double proportional_set_size() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    double kib = 0;
    if (word == "Pss:" && file >> kib) return kib * 1024;
  }
  throw std::runtime_error("/proc/self/smaps_rollup: expected Pss, found none");
}

/// The mean over ranks, when all of them have come here. Ranks: all.
double memory(const lockstep::Group& world) {
  world.barrier().wait();
  const auto sum = torch::tensor(proportional_set_size(), torch::kDouble);
  world.all_reduce(sum, lockstep::ReduceOp::avg).wait();
  return sum.item<double>();
}

lockstep::DataParallelOptions options_of(const Settings& settings) {
  lockstep::DataParallelOptions options;
  if (settings.shard == "optimizer") options.shard = lockstep::Shard::optimizer;
  if (settings.shard == "gradients") options.shard = lockstep::Shard::gradients;
  options.share_memory = settings.share_memory;
  return options;
}

/// Layers of the same kinds as those of mlp().
nn::Sequential small_mlp() {
  return nn::Sequential(nn::Linear(784, 16), nn::ReLU(), nn::Linear(16, 10));
}

class Training {
 public:
  Training(const Settings& settings, const lockstep::Group& world, nn::Sequential (*layers)())
      : data_(torch::rand({settings.batch_size, 784})
                  .to(settings.bf16.empty() ? at::kFloat : at::kBFloat16)),
        target_(torch::randint(10, {settings.batch_size}, torch::kLong)) {
    world.in_turn([&] { model_ = std::make_shared<Layers>(layers()); });
    const auto options = torch::optim::AdamWOptions(1e-4);
    if (!settings.bf16.empty()) {
      model_->to(at::kBFloat16);
      base_ = std::make_unique<lockstep::FusedAdamW>(model_->parameters(), options,
                                                     lockstep::parse_low_precision(settings.bf16));
    } else if (settings.fused)
      base_ = std::make_unique<lockstep::FusedAdamW>(model_->parameters(), options);
    else
      base_ = std::make_unique<torch::optim::AdamW>(model_->parameters(), options);
    optimizer_ = std::make_unique<lockstep::DistributedOptimizer>(*base_, *model_, world,
                                                                  options_of(settings));
  }

  /// before_update: called when all gradients exist.
  template <class BeforeUpdate>
  void step(const BeforeUpdate& before_update) {
    torch::nn::functional::cross_entropy(model_->forward(data_), target_).backward();
    before_update();
    optimizer_->step();
    optimizer_->zero_grad();
  }
  /// As a program that shares memory steps.
  void update() {
    optimizer_->backward_and_update(
        torch::nn::functional::cross_entropy(model_->forward(data_), target_));
  }

  std::int64_t elements() const {
    std::int64_t sum = 0;
    for (const auto& parameter : model_->parameters()) sum += parameter.numel();
    return sum;
  }

 private:
  std::shared_ptr<Layers> model_;
  std::unique_ptr<torch::optim::Optimizer> base_;
  std::unique_ptr<lockstep::DistributedOptimizer> optimizer_;
  at::Tensor data_;
  at::Tensor target_;
};

/// Bytes a parameter that one of N ranks holds: the parameter, its gradient, AdamW's two means.
double computed(const Settings& settings, double ranks) {
  if (!settings.bf16.empty()) {
    const double state = settings.bf16 == "master" ? 12 : settings.bf16 == "kahan" ? 6 : 4;
    const double gradient = settings.shard == "gradients" ? 2 / ranks : 2;
    return 2 + gradient + (settings.shard != "none" ? state / ranks : state);
  }
  if (settings.share_memory) return 4 / ranks + 4 + 8 / ranks;
  const double gradient = settings.shard == "gradients" ? 4 / ranks : 4;
  return 4 + gradient + (settings.shard != "none" ? 8 / ranks : 8);
}

void measure(const Settings& settings, const lockstep::Group& world) {
  torch::set_num_threads(1);
  const auto steps = [&](Training& training) {
    for (int i = 0; i < settings.steps; ++i) training.update();
  };
  Training(settings, world, small_mlp).update();
  const double before = memory(world);
  Training training(settings, world, mlp);
  double with_gradients = 0;
  for (int i = 0; i < 3; ++i) {
    training.step([&] { with_gradients = memory(world); });
  }

  Training unsharded({.fused = settings.fused, .batch_size = settings.batch_size}, world, mlp);
  std::vector<Timed> all{{"sharded", [&] { steps(training); }},
                         {"unsharded", [&] { steps(unsharded); }}};
  take_turns(all, settings.rounds, world);
  const double step = 1000 * median(all[0].seconds) / settings.steps;
  const double unsharded_step = 1000 * median(all[1].seconds) / settings.steps;
  if (world.rank() != 0) return;
  constexpr double mb = 1e6;
  const auto elements = static_cast<double>(training.elements());
  std::cout
      << nlohmann::ordered_json{{"shard", settings.shard},
                                {"share_memory", settings.share_memory},
                                {"fused", settings.fused},
                                {"bf16", settings.bf16},
                                {"ranks", world.size()},
                                {"parameters", training.elements()},
                                {"computed_mb", computed(settings, world.size()) * elements / mb},
                                {"whole_mb_before_the_update", with_gradients / mb},
                                {"measured_mb_before_the_update", (with_gradients - before) / mb},
                                {"step_ms", step},
                                {"unsharded_step_ms", unsharded_step},
                                {"times_the_unsharded_step", step / unsharded_step}}
             .dump()
      << '\n';
}

}  // namespace

std::function<void()> program(CLI::App& command) {
  const auto settings = std::make_shared<Settings>();
  command.add_option("--shard", settings->shard, "What is divided")
      ->check(CLI::IsMember({"none", "optimizer", "gradients"}))
      ->capture_default_str();
  command.add_flag("--share-memory", settings->share_memory,
                   "One copy of parameters and optimizer state for all ranks");
  command.add_flag("--fused", settings->fused, "FusedAdamW instead of torch's AdamW");
  command.add_option("--bf16", settings->bf16, "Parameters of bfloat16, with FusedAdamW")
      ->check(CLI::IsMember({"master", "stochastic", "kahan"}));
  command.add_option("--batch-size", settings->batch_size, "Samples a rank")->capture_default_str();
  command.add_option("--rounds", settings->rounds, "Rounds of timed steps")->capture_default_str();
  command.add_option("--steps", settings->steps, "Steps of a round")->capture_default_str();
  return [=] { measure(*settings, lockstep::init()); };
}

}  // namespace lockstep::bench::memory
