#include "lockstep/moving_average.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/refusal.h"
#include "tests/train/training.h"

namespace lockstep::testing {
namespace {

/// The average after each of the values.
std::vector<double> averages(const MovingAverageOptions& options,
                             const std::vector<double>& values) {
  Single model;
  MovingAverage average(model, options);
  std::vector<double> result;
  for (const double value : values) {
    model.set(value);
    average.update();
    const auto averaged = average.apply();
    result.push_back(model.value[2].item<double>());
  }
  return result;
}

TEST(MovingAverage, FollowsItsFormula) {
  const auto near_to = [](std::vector<double> values) {
    return ::testing::Pointwise(::testing::DoubleNear(1e-14), std::move(values));
  };
  // 0.75 · 8 + 0.25 · 4 = 7, and so on.
  EXPECT_THAT(averages({.decay = 0.75}, {8, 4, 15, -9}), near_to({8, 7, 9, 4.5}));
  EXPECT_THAT(averages({.decay = 0}, {8, 4, 15}), near_to({8, 4, 15}));
  EXPECT_THAT(averages({.decay = 1}, {8, 4, 15}), near_to({8, 8, 8}));
  // (0.5 · 8 + 4) / 1.5, (0.25 · 8 + 0.5 · 4 + 15) / 1.75
  EXPECT_THAT(averages({.decay = 0.5, .bias_correction = true}, {8, 4, 15}),
              near_to({8, 16.0 / 3, 76.0 / 7}));
  // The mean of all values, as stochastic weight averaging computes it.
  EXPECT_THAT(averages({.decay = 1, .bias_correction = true}, {8, 4, 15, -7}),
              near_to({8, 6, 9, 5}));
}

TEST(MovingAverage, BuffersAreTheModelsOrAveraged) {
  for (const bool averages_buffers : {false, true}) {
    Net model;
    MovingAverage average(model, {.decay = 0.5, .average_buffers = averages_buffers});
    for (const double value : {4.0, 8.0}) {
      model.norm->running_mean.fill_(value);
      model.norm->num_batches_tracked.fill_(value);
      average.update();
    }
    {
      const auto averaged = average.apply();
      EXPECT_EQ(model.norm->running_mean[5].item<float>(), averages_buffers ? 6 : 8);
      EXPECT_EQ(model.norm->num_batches_tracked.item<std::int64_t>(), 8);
    }
    EXPECT_EQ(model.norm->running_mean[5].item<float>(), 8);
  }
}

TEST(MovingAverage, ApplyKeepsTrainedParametersAndMemoryAndABackwardAcrossItIsAnError) {
  Training training;
  MovingAverage average(*training.model, {.decay = 0.5});
  const void* const memory = training.model->first->weight.const_data_ptr();
  for (int step = 0; step < 3; ++step) {
    training.step(step);
    average.update();
  }
  const auto forward = [&] { return training.model->forward(torch::ones({8, 4})).sum(); };
  const auto before = forward();
  const auto trained = training.values();
  at::Tensor within;
  {
    const auto averaged = average.apply();
    EXPECT_THROW(before.backward(), c10::Error);
    EXPECT_FALSE(training.model->first->weight.equal(trained[0]));
    EXPECT_TRUE(training.model->first->weight.requires_grad());
    training.model->eval();  // else the forward changes the buffers
    within = forward();
  }
  EXPECT_THROW(within.backward(), c10::Error);
  expect_equal_tensors(training.values(), trained);
  EXPECT_EQ(training.model->first->weight.const_data_ptr(), memory);
}

TEST(MovingAverage, RefusesCallsWhileItIsApplied) {
  Single model;
  MovingAverage average(model);
  model.set(5);
  EXPECT_EQ(values_of(average, model)[0][0].item<double>(), 5) << "before the first update";
  average.update();
  const State state = average.state();
  {
    const auto averaged = average.apply();
    EXPECT_THAT(refusal([&] { const auto twice = average.apply(); }),
                HasSubstr("MovingAverage::apply: the averaged parameters are applied"));
    EXPECT_THAT(refusal([&] { average.update(); }), HasSubstr("MovingAverage::update"));
    EXPECT_THAT(refusal([&] { average.state(); }), HasSubstr("MovingAverage::state"));
    EXPECT_THAT(refusal([&] { average.load_state(state); }),
                HasSubstr("MovingAverage::load_state"));
  }
  average.update();
  EXPECT_EQ(average.updates(), 2);
}

TEST(MovingAverage, HoldsHalvesInFloat32) {
  for (const auto dtype : {torch::kHalf, torch::kBFloat16}) {
    Single model(torch::zeros({3}, dtype));
    MovingAverage average(model, {.decay = 0.999});
    model.set(0);
    average.update();
    model.set(1);
    // Each update adds less than half a unit of the last place of bfloat16.
    for (int i = 0; i < 2000; ++i) average.update();
    const auto averaged = average.apply();
    EXPECT_EQ(model.value.scalar_type(), dtype);
    EXPECT_NEAR(model.value[1].item<float>(), 1 - std::pow(0.999, 2000), 4e-3);
  }
}

/// A weight with two names, a parameter without elements, one in other strides and a frozen one.
struct Unusual : torch::nn::Module {
  Unusual() {
    register_module("first", first);
    register_parameter("tied", first->weight);
    register_parameter("empty", torch::zeros({0}));
    turned = register_parameter("turned", torch::randn({5, 7}).t());
    register_module("convolution", convolution);
    convolution->weight.set_data(convolution->weight.contiguous(at::MemoryFormat::ChannelsLast));
    register_parameter("frozen", torch::randn({3}), false);
  }
  torch::nn::Linear first{torch::nn::LinearOptions(3, 3).bias(false)};
  torch::nn::Conv2d convolution{torch::nn::Conv2dOptions(3, 2, 3)};
  at::Tensor turned;
};

TEST(MovingAverage, UnusualParametersAreAveraged) {
  Unusual model;
  MovingAverage average(model, {.decay = 0.5});
  const auto frozen = model.named_parameters()["frozen"].clone();
  std::vector<std::vector<at::Tensor>> steps;
  for (int step = 0; step < 2; ++step) {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model.parameters())
      if (parameter.requires_grad()) parameter.normal_();
    average.update();
    steps.push_back(values_of(model));
  }
  const auto live = steps[1];
  {
    const auto averaged = average.apply();
    const auto parameters = model.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(parameters[i].allclose((steps[0][i] + steps[1][i]) / 2)) << i;
      EXPECT_EQ(parameters[i].strides(), live[i].strides()) << i;
    }
    EXPECT_TRUE(model.named_parameters()["frozen"].equal(frozen));
    EXPECT_TRUE(model.named_parameters()["tied"].is_same(model.first->weight));
  }
  expect_equal_tensors(values_of(model), live);
}

TEST(MovingAverage, ALazyNegativeKeepsItsSign) {
  for (const auto dtype : {torch::kDouble, torch::kHalf}) {
    const auto value = torch::_neg_view(torch::ones({3}, dtype));
    const std::vector<NamedTensor> buffers{{.name = "negative", .tensor = value}};
    MovingAverage average(ModelView({}, buffers), {.decay = 0.5, .average_buffers = true});
    for (int i = 0; i < 3; ++i) average.update();
    EXPECT_TRUE(average.state().at("values/negative").eq(-1).all().item<bool>()) << dtype;
  }
}

TEST(MovingAverage, HasTheSameBitsWithAnyNumberOfThreads) {
  const int before = at::get_num_threads();
  std::vector<at::Tensor> first;
  for (const int threads : {1, 2, 3, 5}) {
    at::set_num_threads(threads);
    torch::manual_seed(11);
    Single model(torch::randn({200'003}));
    MovingAverage average(model, {.decay = 0.97, .bias_correction = true});
    for (int step = 0; step < 3; ++step) {
      const torch::NoGradGuard no_grad;
      model.value.normal_();
      average.update();
    }
    const auto values = values_of(average, model);
    if (first.empty()) first = values;
    expect_equal_tensors(values, first);
  }
  at::set_num_threads(before);
}

TEST(MovingAverage, RefusesWrongOptionsAndTensorsAndTheStateOfAnotherModel) {
  Net small(5);
  Net large(6);
  for (const double decay : {-0.001, 1.001, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_THAT(refusal([&] { MovingAverage(small, {.decay = decay}); }),
                HasSubstr("MovingAverage: got decay = "));
  Single complex(torch::zeros({2}, torch::kComplexFloat));
  EXPECT_THAT(refusal([&] { const MovingAverage average(complex); }),
              HasSubstr("got 'value' of type "));
  MovingAverage average(small);
  MovingAverage other(large);
  const State good = average.state();
  const auto refused = [&](const State& state) {
    return refusal([&] { average.load_state(state); });
  };
  EXPECT_THAT(refused(other.state()),
              HasSubstr("MovingAverage::load_state: got 'values/first.bias' of Float [6], "
                        "expected Float [5]"));
  MovingAverage with_buffers(small, {.average_buffers = true});
  EXPECT_THAT(refused(with_buffers.state()), HasSubstr("which this model does not average"));
  EXPECT_THAT(refusal([&] { with_buffers.load_state(good); }), HasSubstr("got no 'values/norm."));
  State negative = good;
  negative["updates"] = torch::tensor(std::int64_t{-2});
  EXPECT_THAT(refused(negative), HasSubstr("got -2 updates"));
  EXPECT_EQ(average.updates(), 0);
}

}  // namespace
}  // namespace lockstep::testing
