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

/// The factor of the learning rate after `step` steps. It must be a pure function, so that a
/// resumed run needs the step count only. A step is what the program counts: a batch or an epoch.
using Schedule = std::function<double(std::int64_t step)>;

/// Multiplies the rate by `factor` after every `every` steps: factor^floor(step / every).
struct StepDecay {
  std::int64_t every = 30;
  double factor = 0.1;
  double operator()(std::int64_t step) const;
};

/// From 1 to `lowest` along half a cosine within `steps` steps, then constant: lowest + (1 −
/// lowest)·(1 + cos(π·step / steps)) / 2.
/// Source: Loshchilov and Hutter, SGDR, https://arxiv.org/abs/1608.03983
struct CosineDecay {
  std::int64_t steps = 0;
  double lowest = 0;
  double operator()(std::int64_t step) const;
};

/// In the first `steps` steps, the factor of `then` times a linear ramp from `first` to 1; after
/// them, the factor of `then`. `then` counts steps from the beginning, including the ramp. Use
/// first = 1/N for the gradual warm-up that goes with scaled_rate() on N ranks.
/// Source: Goyal et al., section 2.2, https://arxiv.org/abs/1706.02677
struct WarmUp {
  std::int64_t steps = 0;
  double first = 0;
  Schedule then = [](std::int64_t) { return 1.0; };
  double operator()(std::int64_t step) const;
};

/// The linear scaling rule: k times the batch size, k times the rate.
/// Throws: InvalidArgument for a batch size that is not positive.
/// Source: Goyal et al., section 2.1, https://arxiv.org/abs/1706.02677
double scaled_rate(double rate, std::int64_t reference_batch, std::int64_t global_batch);

/// Sets the learning rates of an optimizer's parameter groups: each group's first rate times the
/// schedule's factor. That is its rate at construction, or, of a group that is added later, before
/// the next step(). Must not outlive the optimizer.
///
///     const lockstep::CosineDecay decay{.steps = 90'000};
///     lockstep::LearningRate rate(sgd, lockstep::WarmUp{.steps = 500, .then = decay});
///     … sgd.step(); rate.step();
class LearningRate {
 public:
  LearningRate(torch::optim::Optimizer& optimizer, Schedule schedule);

  /// The same for a scheduler of LibTorch, whose state cannot be saved. load_state() repeats its
  /// steps, so a resumed run needs a new scheduler with the same arguments.
  LearningRate(torch::optim::Optimizer& optimizer, torch::optim::LRScheduler& scheduler);

  /// Call it after each step of the optimizer, or after each epoch.
  /// Throws: InvalidArgument if a parameter group was removed, or was added after a scheduler of
  /// LibTorch. No rate is changed then.
  void step();
  std::int64_t steps() const { return steps_; }

  /// The step count and the first rates, as text.
  std::string state() const;
  /// Restores the step count and the first rates of a state().
  /// Throws: CheckpointError for text that state() did not write, for another number of parameter
  /// groups, and if a LibTorch scheduler has already taken steps. The schedule's own error for the
  /// step count. Nothing is changed then.
  void load_state(const std::string& state);
  /// Throws the errors of load_state() without changing anything.
  void check_state(const std::string& state) const;

 private:
  struct Saved;
  Saved parse(const std::string& state) const;
  void set_rates(double factor);
  /// Of all groups that the optimizer has now.
  std::vector<double> first_rates() const;

  torch::optim::Optimizer* optimizer_;
  Schedule schedule_;                               ///< empty with a LibTorch scheduler
  torch::optim::LRScheduler* scheduler_ = nullptr;  ///< null with a Schedule
  std::vector<double> first_rates_;
  std::int64_t steps_ = 0;
};

}  // namespace lockstep
