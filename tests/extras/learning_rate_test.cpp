#include "lockstep/learning_rate.h"

#include <torch/optim.h>

#include <cmath>
#include <vector>

#include "lockstep/error.h"
#include "tests/matchers.h"
#include "tests/train/checkpoint_failure.h"

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

std::vector<double> factors(const Schedule& schedule, std::initializer_list<std::int64_t> steps) {
  std::vector<double> result;
  for (const std::int64_t step : steps) result.push_back(schedule(step));
  return result;
}

const auto close_to = [](std::vector<double> values) {
  return ::testing::Pointwise(::testing::DoubleNear(1e-15), std::move(values));
};

TEST(Schedule, StepDecayFallsAtEachMultiple) {
  EXPECT_THAT(factors(StepDecay{.every = 3, .factor = 0.5}, {0, 1, 2, 3, 5, 6, 30}),
              close_to({1, 1, 1, 0.5, 0.5, 0.25, std::pow(2.0, -10)}));
  EXPECT_THROW(StepDecay{.every = 0}(1), InvalidArgument);
}

TEST(Schedule, CosineFallsAlongHalfACosine) {
  // cos(π/3) = 1/2, cos(π/2) = 0, cos(2π/3) = −1/2.
  EXPECT_THAT(factors(CosineDecay{.steps = 6}, {0, 2, 3, 4, 6, 7, 1000}),
              close_to({1, 0.75, 0.5, 0.25, 0, 0, 0}));
  EXPECT_THAT(factors(CosineDecay{.steps = 6, .lowest = 0.2}, {0, 2, 3, 6}),
              close_to({1, 0.8, 0.6, 0.2}));
  EXPECT_EQ(CosineDecay{}(0), 0);
}

TEST(Schedule, WarmUpRampsIntoAnother) {
  EXPECT_THAT(factors(WarmUp{.steps = 4, .first = 0.2}, {0, 1, 2, 3, 4, 100}),
              close_to({0.2, 0.4, 0.6, 0.8, 1, 1}));
  const WarmUp both{.steps = 4, .first = 0, .then = StepDecay{.every = 2, .factor = 0.1}};
  EXPECT_THAT(factors(both, {0, 1, 2, 3, 4, 6}), close_to({0, 0.25, 0.05, 0.075, 0.01, 0.001}));
  EXPECT_THAT(factors(WarmUp{}, {0}), close_to({1}));
}

TEST(Schedule, TheRateScalesWithTheBatch) {
  EXPECT_DOUBLE_EQ(scaled_rate(0.1, 256, 8192), 3.2);  // Goyal et al.'s own example
  EXPECT_DOUBLE_EQ(scaled_rate(0.1, 256, 64), 0.025);
  EXPECT_THROW(scaled_rate(0.1, 0, 1), InvalidArgument);
  EXPECT_THROW(scaled_rate(0.1, 1, -1), InvalidArgument);
}

TEST(LearningRate, EachGroupKeepsItsOwnRatio) {
  Optimizer optimizer;
  LearningRate rate(optimizer, WarmUp{.steps = 4, .first = 0.25});
  EXPECT_DOUBLE_EQ(optimizer.rate(0), 0.2);
  EXPECT_DOUBLE_EQ(optimizer.rate(1), 0.05);
  for (int i = 0; i < 4; ++i) rate.step();
  EXPECT_EQ(rate.steps(), 4);
  EXPECT_DOUBLE_EQ(optimizer.rate(0), 0.8);
  EXPECT_DOUBLE_EQ(optimizer.rate(1), 0.2);
}

TEST(LearningRate, ResumesWhereItWas) {
  const CosineDecay schedule{.steps = 10};
  Optimizer whole;
  LearningRate rate(whole, schedule);
  for (int i = 0; i < 7; ++i) rate.step();

  Optimizer fresh;
  // A rate that the optimizer was given by mistake: the saved one counts.
  fresh.param_groups()[0].options().set_lr(123);
  LearningRate resumed(fresh, schedule);
  resumed.load_state(rate.state());
  EXPECT_EQ(resumed.steps(), 7);
  EXPECT_EQ(fresh.rate(0), whole.rate(0));
  rate.step();
  resumed.step();
  EXPECT_EQ(fresh.rate(0), whole.rate(0));
  EXPECT_EQ(fresh.rate(1), whole.rate(1));
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

}  // namespace
}  // namespace lockstep::testing
