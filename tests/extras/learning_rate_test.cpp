#include "lockstep/learning_rate.h"

#include <torch/types.h>

#include <limits>
#include <optional>

#include "lockstep/early_stopping.h"
#include "lockstep/error.h"
#include "tests/groups.h"
#include "tests/refusal.h"
#include "tests/train/training.h"

namespace lockstep::testing {
namespace {

/// An optimizer of two groups, whose rates are 0.8 and 0.2.
struct Optimizer : torch::optim::SGD {
  Optimizer() : torch::optim::SGD(groups(), torch::optim::SGDOptions(0.8)) {}
  static std::vector<torch::optim::OptimizerParamGroup> groups() {
    std::vector<torch::optim::OptimizerParamGroup> result;
    result.emplace_back(std::vector{torch::zeros(1)});
    result.emplace_back(std::vector{torch::zeros(1)},
                        std::make_unique<torch::optim::SGDOptions>(0.2));
    return result;
  }
  double rate(std::size_t group = 0) const { return param_groups()[group].options().get_lr(); }
};

/// The factors of steps, in pairs.
void expect_factors(const Schedule& schedule,
                    std::initializer_list<std::pair<std::int64_t, double>> factors) {
  for (const auto& [step, factor] : factors) EXPECT_NEAR(schedule(step), factor, 1e-15) << step;
}

TEST(Schedule, FollowsItsFormula) {
  expect_factors(StepDecay{.every = 3, .factor = 0.5},
                 {{0, 1}, {1, 1}, {2, 1}, {3, 0.5}, {5, 0.5}, {6, 0.25}, {30, 0x1p-10}});
  EXPECT_THROW(StepDecay{.every = 0}(1), InvalidArgument);
  // cos(π/3) = 1/2, cos(π/2) = 0, cos(2π/3) = −1/2.
  expect_factors(CosineDecay{.steps = 6},
                 {{0, 1}, {2, 0.75}, {3, 0.5}, {4, 0.25}, {6, 0}, {7, 0}, {1000, 0}});
  expect_factors(CosineDecay{.steps = 6, .lowest = 0.2}, {{0, 1}, {2, 0.8}, {3, 0.6}, {6, 0.2}});
  EXPECT_EQ(CosineDecay{}(0), 0);
  expect_factors(WarmUp{.steps = 4, .first = 0.2},
                 {{0, 0.2}, {1, 0.4}, {2, 0.6}, {3, 0.8}, {4, 1}, {100, 1}});
  expect_factors(WarmUp{.steps = 4, .first = 0, .then = StepDecay{.every = 2, .factor = 0.1}},
                 {{0, 0}, {1, 0.25}, {2, 0.05}, {3, 0.075}, {4, 0.01}, {6, 0.001}});
  expect_factors(WarmUp{}, {{0, 1}});
  // The rate scales with the batch.
  EXPECT_DOUBLE_EQ(scaled_rate(0.1, 256, 8192), 3.2);  // Goyal et al.'s own example
  EXPECT_DOUBLE_EQ(scaled_rate(0.1, 256, 64), 0.025);
  EXPECT_THROW(scaled_rate(0.1, 0, 1), InvalidArgument);
  EXPECT_THROW(scaled_rate(0.1, 1, -1), InvalidArgument);
}

TEST(LearningRate, AGroupThatIsAddedLaterFollowsTheScheduleAlsoAfterAResume) {
  const auto add = [](Optimizer& to) {
    to.add_param_group(
        {std::vector{torch::zeros(1)}, std::make_unique<torch::optim::SGDOptions>(0.4)});
  };
  Optimizer optimizer;
  LearningRate rate(optimizer, StepDecay{.every = 1, .factor = 0.5});
  rate.step();
  add(optimizer);
  const auto before = rate.state();
  rate.step();
  EXPECT_DOUBLE_EQ(optimizer.rate(2), 0.1);
  EXPECT_DOUBLE_EQ(optimizer.rate(0), 0.2);
  EXPECT_EQ(before.substr(0, before.find("],")), rate.state().substr(0, before.find("],")));

  Optimizer fresh;
  LearningRate resumed(fresh, StepDecay{.every = 1, .factor = 0.5});
  EXPECT_THAT(failure([&] { resumed.load_state(rate.state()); }),
              HasSubstr("expected the rates of 2 parameter groups, found 3"));
  add(fresh);
  fresh.param_groups()[0].options().set_lr(123);  // the saved one counts
  resumed.load_state(rate.state());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(resumed.steps(), rate.steps());
    for (std::size_t group = 0; group < 3; ++group)
      EXPECT_EQ(fresh.rate(group), optimizer.rate(group)) << group;
    rate.step();
    resumed.step();
  }

  optimizer.param_groups().pop_back();
  EXPECT_THAT(refusal([&] { rate.step(); }), HasSubstr("got 2 parameter groups, expected the 3"));
  torch::optim::StepLR scheduler(optimizer, 2, 0.3);
  LearningRate wrapped(optimizer, scheduler);
  add(optimizer);
  EXPECT_THAT(refusal([&] { wrapped.step(); }),
              HasSubstr("got 3 parameter groups, expected the 2"));
}

TEST(LearningRate, AScheduleOfLibTorchIsWalkedAgain) {
  Optimizer whole;
  torch::optim::StepLR scheduler(whole, 2, 0.3);
  LearningRate rate(whole, scheduler);
  for (int i = 0; i < 5; ++i) rate.step();

  Optimizer fresh;
  torch::optim::StepLR again(fresh, 2, 0.3);
  LearningRate resumed(fresh, again);
  resumed.load_state(rate.state());
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(fresh.rate(0), whole.rate(0)) << i;
    EXPECT_EQ(fresh.rate(1), whole.rate(1)) << i;
    rate.step();
    resumed.step();
  }
  EXPECT_THAT(failure([&] { resumed.load_state(rate.state()); }),
              HasSubstr("cannot be reset: expected a new one, found one after 9 steps"));
}

TEST(LearningRate, WhatItDidNotWriteIsAnError) {
  Optimizer optimizer;
  LearningRate rate(optimizer, CosineDecay{.steps = 10});
  rate.step();
  const double before = optimizer.rate();
  for (const char* text :
       {"", "{", "[]", "{}", R"({"steps":"x","first_rates":[1,1]})",
        R"({"steps":-1,"first_rates":[1,1]})", R"({"steps":1,"first_rates":[1]})"})
    EXPECT_THAT(failure([&] { rate.load_state(text); }), HasSubstr("learning rate: ")) << text;
  EXPECT_THAT(failure([&] { rate.check_state(std::string(100, '[')); }), HasSubstr("levels"));
  EXPECT_EQ(optimizer.rate(), before);
  EXPECT_EQ(rate.steps(), 1);
}

constexpr double a_nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinite = std::numeric_limits<double>::infinity();

/// How many values it takes until training stops; 0 if it does not.
std::size_t stop_of(EarlyStopping stopping, const std::vector<double>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool stopped = stopping.update(values[i]);
    EXPECT_EQ(stopped, stopping.stopped());
    if (stopped) return i + 1;
  }
  return 0;
}

TEST(EarlyStopping, StopsAfterValuesWithoutAnImprovementOfMoreThanMinDelta) {
  const std::vector<double> values{5, 4, 4, 4.5, 3, 3, 3, 3, 2};
  const std::size_t stops[] = {3, 4, 8, 0};  // with patience 1, 2, …
  for (const std::int64_t patience : {1, 2, 3, 4})
    EXPECT_EQ(stop_of(EarlyStopping({.patience = patience}), values), stops[patience - 1]);
  EXPECT_EQ(stop_of(EarlyStopping(), values), 8u);
  // The greatest may be best.
  const EarlyStoppingOptions options{.patience = 2, .mode = Best::greatest};
  EXPECT_EQ(stop_of(EarlyStopping(options), {-3, -2, -2, -1, -1, -5, 7}), 6u);
  EXPECT_EQ(stop_of(EarlyStopping({.patience = 2}), {-3, -2, -2}), 3u);
  // Small gains add up, because they are compared with the best value.
  EXPECT_EQ(stop_of(EarlyStopping({.patience = 3, .min_delta = 0.5}), {4, 3.75, 3.5, 3.25, 3}), 0u);
  EXPECT_EQ(stop_of(EarlyStopping({.patience = 2, .min_delta = 0.5}), {4, 3.75, 3.5}), 3u);
  EarlyStopping stopping({.min_delta = 0.5});
  EXPECT_EQ(stopping.best(), std::nullopt);
  EXPECT_FALSE(stopping.improved());
  stopping.update(4);
  EXPECT_TRUE(stopping.improved());
  stopping.update(3.5);
  EXPECT_FALSE(stopping.improved());
  EXPECT_EQ(stopping.best(), 4);
  EXPECT_EQ(stopping.waited(), 1);
  stopping.update(3.4375);
  EXPECT_TRUE(stopping.improved());
  EXPECT_EQ(stopping.best(), 3.4375);
  EXPECT_EQ(stopping.waited(), 0);
}

TEST(EarlyStopping, ValuesThatAreNotFiniteStopAtOnceOrCountAsNoImprovement) {
  for (const double value : {a_nan, infinite, -infinite}) {
    EXPECT_EQ(stop_of(EarlyStopping(), {5, value, 4}), 2u) << value;
    EarlyStopping stopping;
    EXPECT_TRUE(stopping.update(value));
    EXPECT_TRUE(stopping.not_finite());
    EXPECT_EQ(stopping.best(), std::nullopt);
    for (const Best mode : {Best::least, Best::greatest}) {
      const EarlyStopping counting({.patience = 2, .mode = mode, .check_finite = false});
      EXPECT_EQ(stop_of(counting, {value, 1, value, value}), 4u) << value;
      EXPECT_EQ(stop_of(counting, {value, value}), 2u) << value;
    }
  }
}

TEST(EarlyStopping, RanksStopTogetherByRankZerosValue) {
  for (const int ranks : {1, 2, 3}) {
    std::vector<int> stops(static_cast<std::size_t>(ranks));
    run_groups(ranks, [&](const Group& group) {
      EarlyStopping stopping({.patience = 2});
      const std::vector<double> losses{4, 3, 3.5, 3.25, 1};
      int step = 0;
      // The loss of the other ranks falls all the time, or is not known.
      for (const double loss : losses) {
        ++step;
        const double own = group.rank() == 0 ? loss : group.rank() == 1 ? -step : a_nan;
        if (stopping.update(own, group)) break;
      }
      EXPECT_EQ(stopping.best(), 3);
      stops[static_cast<std::size_t>(group.rank())] = step;
    });
    EXPECT_EQ(stops, std::vector<int>(static_cast<std::size_t>(ranks), 4)) << ranks;
  }
}

TEST(EarlyStopping, AResumedRunKeepsItsPatience) {
  const std::vector<double> losses{4, 3, 3.5, 3.25, 3.125, 1};
  for (std::size_t saved = 0; saved <= losses.size(); ++saved) {
    EarlyStopping whole({.patience = 3}), resumed({.patience = 3}), patient({.patience = 4});
    std::size_t done = 0;
    for (; done < saved && !whole.stopped(); ++done) whole.update(losses[done]);
    resumed.update(-7);
    resumed.load_state(whole.state());
    EXPECT_EQ(resumed.best(), whole.best());
    EXPECT_EQ(resumed.waited(), whole.waited());
    EXPECT_EQ(resumed.improved(), whole.improved());
    while (!resumed.stopped()) resumed.update(losses.at(done++));
    EXPECT_EQ(done, 5u) << "saved after " << saved;
    // More patience continues a run that has ended.
    patient.load_state(whole.state());
    EXPECT_FALSE(patient.stopped());
  }
}

TEST(EarlyStopping, RefusesWrongOptionsAndOtherStates) {
  for (const std::int64_t patience : {0, -1})
    EXPECT_THAT(refusal([&] { EarlyStopping({.patience = patience}); }),
                HasSubstr("EarlyStopping: got patience = "));
  for (const double delta : {-0.5, a_nan, infinite})
    EXPECT_THAT(refusal([&] { EarlyStopping({.min_delta = delta}); }),
                HasSubstr("EarlyStopping: got min_delta = "));
  EarlyStopping stopping;
  stopping.update(5);
  const auto refused = [&](const State& state) {
    return refusal([&] { stopping.load_state(state); });
  };
  EXPECT_THAT(refused(EarlyStopping({.mode = Best::greatest}).state()),
              HasSubstr("got the state of mode greatest, expected least"));
  const State good = EarlyStopping().state();
  State more = good;
  more["more"] = torch::tensor(1);
  EXPECT_THAT(refused(more), HasSubstr("state() did not return"));
  State negative = good;
  negative["waited"] = torch::tensor(std::int64_t{-1});
  EXPECT_THAT(refused(negative), HasSubstr("got -1 values since the best one"));
  EXPECT_EQ(stopping.best(), 5);
}

}  // namespace
}  // namespace lockstep::testing
