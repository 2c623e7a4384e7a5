// A long run whose idle weights decay into denormals: Adam with weight decay trains an MLP on
// made-up pictures, three quarters of whose pixels are always zero, as borders are. Weight decay
// shrinks the weights that read those pixels, and with them Adam's averages of their gradients.
// Each step is followed by the same step of a run that began anew with this epoch, so that a change
// of the machine's speed slows both. Prints as one JSON object how long a step of each run takes in
// each epoch. Compare
//   lockstep run -n 2 --denormals flush bench_denormals
//   lockstep run -n 2 --denormals keep bench_denormals

#include <lockstep/lockstep.h>
#include <time.h>
#include <torch/nn.h>
#include <torch/optim/adam.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/clock.h"
#include "core/system/denormals_guard.h"
#include "largest.h"
#include "models.h"

namespace lockstep::bench::denormals {
namespace {

/// Units: milliseconds. The least processor time of many steps is the same while other programs
/// run.
struct Time {
  double wall;
  double processor;
};

Time now() {
  timespec processor{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &processor);
  return {.wall = 1e-3 * now_us(),
          .processor = 1e3 * static_cast<double>(processor.tv_sec) +
                       1e-6 * static_cast<double>(processor.tv_nsec)};
}

struct Settings {
  int epochs = 30;
  int steps = 100;
  std::int64_t batch_size = 64;
};

constexpr std::int64_t pixels = 784;
constexpr std::int64_t pictures = 2000;

std::shared_ptr<Layers> make_model() {
  torch::manual_seed(0);
  return std::make_shared<Layers>(nn::Sequential(
      nn::Linear(pixels, 256), nn::ReLU(), nn::Linear(256, 256), nn::ReLU(), nn::Linear(256, 10)));
}

/// The share of numbers that are denormals, told by their bits: arithmetic may flush them.
double share_of_denormals(const at::Tensor& numbers) {
  const at::Tensor magnitude = numbers.detach().view(at::kInt).bitwise_and(0x7fffffff);
  const at::Tensor are_denormal = magnitude.gt(0).logical_and(magnitude.lt(0x00800000));
  return are_denormal.to(at::kDouble).mean().item<double>();
}

class Run {
 public:
  Run(const Settings& settings, const lockstep::Group& world)
      : settings_(settings),
        world_(world),
        model_(make_model()),
        adam_(model_->parameters(),
              torch::optim::AdamOptions(0.001).betas({0.9, 0.95}).weight_decay(1e-4)),
        ddp_(model_, world) {
    torch::manual_seed(1 + static_cast<std::uint64_t>(world.rank()));
    inputs_ = torch::rand({pictures, pixels}) * torch::arange(pixels).remainder(4).eq(0);
    targets_ = torch::randint(10, {pictures}, torch::kLong);
  }

  void step() {
    const auto chosen = torch::randint(pictures, {settings_.batch_size}, torch::kLong);
    const Time begin = now();
    adam_.zero_grad();
    const auto outputs = ddp_(inputs_.index_select(0, chosen));
    nn::functional::cross_entropy(outputs, targets_.index_select(0, chosen)).backward();
    adam_.step();
    const Time end = now();
    wall_.push_back(end.wall - begin.wall);
    processor_.push_back(end.processor - begin.processor);
  }

  /// Of the weights that read pixels.
  double denormals() const { return share_of_denormals(model_->parameters().front()); }

  /// Of the steps since the last call, on the slowest rank: the median time, and the least
  /// processor time.
  Time epoch() {
    const Time time{.wall = largest(median(wall_), world_),
                    .processor = largest(*std::ranges::min_element(processor_), world_)};
    wall_.clear();
    processor_.clear();
    return time;
  }

 private:
  Settings settings_;
  lockstep::Group world_;
  std::shared_ptr<Layers> model_;
  torch::optim::Adam adam_;
  lockstep::DistributedDataParallel<Layers> ddp_;
  at::Tensor inputs_;
  at::Tensor targets_;
  std::vector<double> wall_;
  std::vector<double> processor_;
};

/// The medians of the first five values and of the last five.
std::pair<double, double> ends_of(const std::vector<double>& values) {
  const auto some = static_cast<std::ptrdiff_t>(std::min<std::size_t>(5, values.size()));
  return {median({values.begin(), values.begin() + some}),
          median({values.end() - some, values.end()})};
}

/// A step's milliseconds in each epoch of the run, and of the run that began anew with the epoch.
struct Epochs {
  std::vector<double> run = {};
  std::vector<double> fresh = {};
};

/// growth is that of a step beside one of the run that began anew with the epoch.
void add_growth(nlohmann::ordered_json& result, const std::string& prefix, const Epochs& epochs) {
  std::vector<double> ratios(epochs.run.size());
  std::ranges::transform(epochs.run, epochs.fresh, ratios.begin(), std::divides());
  const auto [first, last] = ends_of(epochs.run);
  const auto [first_ratio, last_ratio] = ends_of(ratios);
  result.update({{prefix + "first_ms", first},
                 {prefix + "last_ms", last},
                 {prefix + "fresh_last_ms", ends_of(epochs.fresh).second},
                 {prefix + "growth", last_ratio / first_ratio}});
}

void measure(const Settings& settings, const lockstep::Group& world) {
  Run run(settings, world);
  Epochs wall;
  Epochs processor;
  for (int epoch = 0; epoch < settings.epochs; ++epoch) {
    Run fresh(settings, world);
    for (int i = 0; i < settings.steps; ++i) {
      run.step();
      fresh.step();
    }
    const Time step = run.epoch();
    wall.run.push_back(step.wall);
    processor.run.push_back(step.processor);
    const Time fresh_step = fresh.epoch();
    wall.fresh.push_back(fresh_step.wall);
    processor.fresh.push_back(fresh_step.processor);
  }
  if (world.rank() != 0) return;
  nlohmann::ordered_json result = {
      {"ranks", world.size()},
      {"denormals", lockstep::detail::denormals_text(lockstep::flushes_denormals())},
      {"share_of_denormals", run.denormals()}};
  add_growth(result, "", wall);
  add_growth(result, "cpu_", processor);
  std::cout << result.dump() << std::endl;
}

}  // namespace

std::function<void()> program(CLI::App& command) {
  const auto settings = std::make_shared<Settings>();
  const auto add = [&](const char* name, auto& value, const char* text) {
    command.add_option(name, value, text)->check(CLI::Range(1, 100000))->capture_default_str();
  };
  add("--epochs", settings->epochs, "Epochs; the first and the last five are compared");
  add("--steps", settings->steps, "Steps an epoch");
  add("--batch-size", settings->batch_size, "Pictures a step and rank");
  return [=] { measure(*settings, lockstep::init()); };
}

}  // namespace lockstep::bench::denormals
