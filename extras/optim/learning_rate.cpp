#include "lockstep/learning_rate.h"

#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <utility>

#include "core/json_depth.h"
#include "core/operation_error.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {

using detail::concat;

double StepDecay::operator()(std::int64_t step) const {
  if (every < 1)
    detail::throw_invalid("StepDecay", "got every ", every, " steps, expected at least 1");
  return std::pow(factor, static_cast<double>(step / every));
}

double CosineDecay::operator()(std::int64_t step) const {
  if (step >= steps) return lowest;
  const double done = static_cast<double>(step) / static_cast<double>(steps);
  return lowest + (1 - lowest) * (1 + std::cos(std::numbers::pi * done)) / 2;
}

double WarmUp::operator()(std::int64_t step) const {
  if (step >= steps) return then(step);
  const double done = static_cast<double>(step) / static_cast<double>(steps);
  return (first + (1 - first) * done) * then(step);
}

double scaled_rate(double rate, std::int64_t reference_batch, std::int64_t global_batch) {
  if (reference_batch < 1 || global_batch < 1)
    detail::throw_invalid("scaled_rate", "got batches of ", reference_batch, " and ", global_batch,
                          ", expected at least 1");
  return rate * static_cast<double>(global_batch) / static_cast<double>(reference_batch);
}

LearningRate::LearningRate(torch::optim::Optimizer& optimizer, Schedule schedule)
    : optimizer_(&optimizer), schedule_(std::move(schedule)) {
  first_rates_ = first_rates();
  set_rates(schedule_(0));
}

LearningRate::LearningRate(torch::optim::Optimizer& optimizer, torch::optim::LRScheduler& scheduler)
    : optimizer_(&optimizer), scheduler_(&scheduler) {
  first_rates_ = first_rates();
}

std::vector<double> LearningRate::first_rates() const {
  auto rates = first_rates_;
  const auto& groups = optimizer_->param_groups();
  while (rates.size() < groups.size()) rates.push_back(groups[rates.size()].options().get_lr());
  return rates;
}

void LearningRate::set_rates(double factor) {
  for (std::size_t g = 0; g < first_rates_.size(); ++g)
    optimizer_->param_groups()[g].options().set_lr(first_rates_[g] * factor);
}

void LearningRate::step() {
  auto rates = first_rates();
  const auto groups = optimizer_->param_groups().size();
  if (groups < rates.size() || (scheduler_ != nullptr && groups > first_rates_.size())) {
    detail::throw_invalid("LearningRate", "got ", groups, " parameter groups, expected the ",
                          first_rates_.size(), " of the step before",
                          scheduler_ == nullptr
                              ? ": remove no group"
                              : ", because a resumed run repeats all steps of a LibTorch scheduler "
                                "for each group: construct scheduler and LearningRate after the "
                                "last group is added");
  }
  first_rates_ = std::move(rates);
  ++steps_;
  if (scheduler_ != nullptr)
    scheduler_->step();
  else
    set_rates(schedule_(steps_));
}

struct LearningRate::Saved {
  std::int64_t steps;
  std::vector<double> first_rates;
};

std::string LearningRate::state() const {
  return nlohmann::json{{"steps", steps_}, {"first_rates", first_rates()}}.dump();
}

LearningRate::Saved LearningRate::parse(const std::string& state) const {
  try {
    detail::check_json_depth(state, "learning rate");
    const auto json = nlohmann::json::parse(state);
    Saved saved{.steps = json.at("steps").get<std::int64_t>(),
                .first_rates = json.at("first_rates").get<std::vector<double>>()};
    if (saved.steps < 0)
      throw CheckpointError(
          concat("learning rate: expected a number of steps, found ", saved.steps));
    if (const auto groups = optimizer_->param_groups().size(); saved.first_rates.size() != groups)
      throw CheckpointError(concat("learning rate: expected the rates of ", groups,
                                   " parameter groups, found ", saved.first_rates.size()));
    if (scheduler_ != nullptr && steps_ > 0)
      throw CheckpointError(
          concat("learning rate: a scheduler of LibTorch cannot be reset: expected a "
                 "new one, found one after ",
                 steps_, " steps"));
    if (scheduler_ == nullptr) schedule_(saved.steps);  // a program's own schedule may throw
    return saved;
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(concat("learning rate: ", error.what()));
  }
}

void LearningRate::check_state(const std::string& state) const { parse(state); }

void LearningRate::load_state(const std::string& state) {
  Saved saved = parse(state);
  first_rates_ = std::move(saved.first_rates);
  if (scheduler_ == nullptr) {
    steps_ = saved.steps;
    set_rates(schedule_(steps_));
  } else {
    set_rates(1);
    while (steps_ < saved.steps) step();
  }
}

}  // namespace lockstep
