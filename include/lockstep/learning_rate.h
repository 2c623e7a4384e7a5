#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace torch::optim {
class LRScheduler;
class Optimizer;
}  // namespace torch::optim

namespace lockstep::inline v0_2 {

/// The factor of an optimizer's learning rate after so many steps: a pure function, so that a
/// resumed run needs to know nothing but the number. Steps are whatever the program counts: batches
/// or epochs.
using Schedule = std::function<double(std::int64_t step)>;

/// factor^floor(step / every).
struct StepDecay {
  std::int64_t every = 30;
  double factor = 0.1;
  double operator()(std::int64_t step) const;
};

/// From 1 down to lowest along half a cosine, and lowest after so many steps:
/// lowest + (1 − lowest)·(1 + cos(π·step / steps)) / 2.
/// Source: Loshchilov and Hutter, SGDR, https://arxiv.org/abs/1608.03983
struct CosineDecay {
  std::int64_t steps = 0;
  double lowest = 0;
  double operator()(std::int64_t step) const;
};

/// During the first steps, then's factor times a ramp from first to 1; then's own from there on.
/// then counts from the beginning, the ramp included. With first = 1/N it is the gradual warm-up
/// that goes with scaled_rate.
/// Source: Goyal et al., section 2.2, https://arxiv.org/abs/1706.02677
struct WarmUp {
  std::int64_t steps = 0;
  double first = 0;
  Schedule then = [](std::int64_t) { return 1.0; };
  double operator()(std::int64_t step) const;
};

/// The linear scaling rule: a batch k times as large takes k times the rate.
/// Throws: InvalidArgument for a batch that is not positive.
/// Source: Goyal et al., section 2.1, https://arxiv.org/abs/1706.02677
double scaled_rate(double rate, std::int64_t reference_batch, std::int64_t global_batch);

/// Sets the learning rates of an optimizer's groups, each its own when this was made times the
/// schedule's factor. Must not outlive the optimizer.
///
///     const lockstep::CosineDecay decay{.steps = 90'000};
///     lockstep::LearningRate rate(sgd, lockstep::WarmUp{.steps = 500, .then = decay});
///     … sgd.step(); rate.step();
class LearningRate {
 public:
  LearningRate(torch::optim::Optimizer& optimizer, Schedule schedule);

  /// The same for a schedule of LibTorch, whose state cannot be saved. A resumed run repeats its
  /// steps, so it must begin with a new schedule that is constructed as the first was.
  LearningRate(torch::optim::Optimizer& optimizer, torch::optim::LRScheduler& scheduler);

  /// After a step of the optimizer, or an epoch.
  void step();
  std::int64_t steps() const { return steps_; }

  /// Everything that cannot be made again: steps, and the rates at the beginning.
  std::string state() const;
  /// Goes to where state() was taken.
  /// Throws: CheckpointError for what state() did not write, or another number of groups, and when
  /// a schedule of LibTorch has already made steps; nothing is changed then.
  void load_state(const std::string& state);
  /// The same errors, and nothing else.
  void check_state(const std::string& state) const;

 private:
  struct Saved;
  Saved parse(const std::string& state) const;
  void set_rates(double factor);

  torch::optim::Optimizer* optimizer_;
  Schedule schedule_;                               ///< or
  torch::optim::LRScheduler* scheduler_ = nullptr;  ///< its like of LibTorch
  std::vector<double> first_rates_;
  std::int64_t steps_ = 0;
};

}  // namespace lockstep
