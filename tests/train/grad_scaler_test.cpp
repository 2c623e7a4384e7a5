#include "lockstep/grad_scaler.h"

#include <limits>

#include "lockstep/strategy.h"
#include "tests/matchers.h"
#include "tests/parallel/models.h"
#include "tests/refusal.h"

namespace lockstep::grad_scaler {
namespace {

using namespace testing;

constexpr float infinity = std::numeric_limits<float>::infinity();

/// A parameter with a gradient that the test sets, and its optimizer.
struct Parameter {
  void set_gradient(std::vector<float> values, at::ScalarType dtype = at::kFloat) {
    values_.mutable_grad() = at::tensor(values, at::kFloat).to(dtype);
  }
  explicit Parameter(at::ScalarType dtype = at::kFloat)
      : values_(at::zeros({2}, dtype).requires_grad_()), sgd({values_}, 1.0) {}
  std::vector<float> values() const {
    const auto all = values_.detach().to(at::kFloat);
    return {all[0].item<float>(), all[1].item<float>()};
  }

  at::Tensor values_;
  torch::optim::SGD sgd;
};

TEST_ON_RANKS(GradScaler, ScalesAndUnscales, 1) {
  GradScaler scaler(world, {.init_scale = 8});
  EXPECT_EQ(scaler.scale(at::ones({})).item<float>(), 8);
  const auto of_half = scaler.scale(at::ones({}, at::kHalf));
  EXPECT_EQ(of_half.scalar_type(), at::kFloat);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    Parameter parameter(dtype);
    parameter.set_gradient({16, -8}, dtype);
    scaler.unscale_(parameter.sgd);
    EXPECT_EQ(parameter.values_.grad()[0].item<float>(), 2) << dtype;
    EXPECT_TRUE(scaler.step(parameter.sgd));
    EXPECT_EQ(parameter.values(), (std::vector<float>{-2, 1})) << dtype;
    scaler.update();
  }
}

TEST_ON_RANKS(GradScaler, GrowsAndBacksOff, 1) {
  GradScaler scaler(
      world, {.init_scale = 4, .growth_factor = 3, .backoff_factor = 0.25, .growth_interval = 2});
  Parameter parameter;
  std::vector<double> scales;
  for (const float gradient : {1.F, 1.F, infinity, 1.F, NAN, 1.F, 1.F, 1.F}) {
    parameter.set_gradient({1, gradient});
    EXPECT_EQ(scaler.step(parameter.sgd), gradient == 1);
    scaler.update();
    scales.push_back(scaler.get_scale());
  }
  EXPECT_EQ(scales, (std::vector<double>{4, 12, 3, 3, 0.75, 0.75, 2.25, 2.25}));
  // The scale and its inverse stay in the range of float32, also where denormals are flushed.
  for (const auto& [scale, gradient] : {std::pair{8e37F, 1.F}, {1.2e-38F, infinity}}) {
    scaler.update(scale);
    for (int step = 0; step < 3; ++step) {
      parameter.set_gradient({1, gradient});
      scaler.step(parameter.sgd);
      scaler.update();
    }
    EXPECT_EQ(scaler.get_scale(), scale);
  }
}

TEST_ON_RANKS(GradScaler, ARankWithAnInfiniteGradientSkipsTheStepOfAllRanks, 2, 3) {
  GradScaler scaler(world, {.init_scale = 2});
  Parameter parameter;
  Parameter other;
  for (int rank = 0; rank < world.size(); ++rank) {
    parameter.set_gradient({1, world.rank() == rank ? infinity : 1});
    other.set_gradient({2, 2});
    EXPECT_FALSE(scaler.step(parameter.sgd));
    EXPECT_TRUE(scaler.step(other.sgd)) << "its gradients are finite";
    scaler.update();
  }
  EXPECT_EQ(parameter.values(), (std::vector<float>{0, 0}));
  EXPECT_EQ(scaler.get_scale(), world.size() == 2 ? 0.5 : 0.25);
  parameter.values_.mutable_grad() = at::Tensor();
  EXPECT_TRUE(scaler.step(parameter.sgd)) << "no gradient is not an infinite one";
}

TEST_ON_RANKS(GradScaler, ADistributedOptimizerSkipsAndGoesOn, 3) {
  for (const char* strategy : {"fp32", "fp16", "bf16", "local_sgd:period=2"}) {
    torch::nn::Linear model(3, 2);
    for (auto& parameter : model->parameters()) torch::nn::init::constant_(parameter, 0.5);
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    DistributedOptimizer optimizer(sgd, *model, world, parse_strategy(strategy));
    GradScaler scaler(world, {.init_scale = 256, .growth_interval = 100});
    for (int step = 0; step < 6; ++step) {
      auto input = at::ones({2, 3}) * (world.rank() + step + 1) / 8;
      if (step == 2 && world.rank() == 1) input.fill_(infinity);
      // Rank 0 has no loss in step 4.
      if (step != 4 || world.rank() != 0) {
        scaler.scale(model(input).square().mean()).backward();
      }
      if (step % 2 == 1) scaler.unscale_(optimizer);
      EXPECT_EQ(scaler.step(optimizer), step != 2) << strategy;
      scaler.update();
      optimizer.zero_grad();
    }
    optimizer.synchronize();
    EXPECT_EQ(scaler.get_scale(), 128);
    const auto mine = torch::nn::utils::parameters_to_vector(model->parameters()).detach();
    EXPECT_TRUE(mine.isfinite().all().item<bool>()) << strategy;
    EXPECT_TRUE(same_on_all_ranks(mine, world)) << strategy;
  }
}

TEST_ON_RANKS(GradScaler, RefusesTheOptimizerOfADistributedOptimizerAndGraphsThatSavedAGradient,
              2) {
  Parameter parameter;
  GradScaler scaler(world), disabled(world, {.enabled = false});
  {
    DistributedOptimizer optimizer(parameter.sgd, ModelView({{"p", parameter.values_}}), world,
                                   parse_strategy("local_sgd:period=2"));
    parameter.values_.sum().backward();
    for (auto* one : {&scaler, &disabled}) {
      EXPECT_THAT(refusal([&] { one->step(parameter.sgd); }),
                  HasSubstr("GradScaler::step: got the optimizer of a Distributed"));
    }
  }
  EXPECT_TRUE(disabled.step(parameter.sgd));
  EXPECT_EQ(parameter.values(), (std::vector<float>{-1, -1}));
  // Unscaling changes gradients that a graph has saved.
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    Parameter saved(dtype);
    DistributedOptimizer optimizer(saved.sgd, ModelView({{"p", saved.values_}}), world);
    GradScaler by_8(world, {.init_scale = 8});
    const auto other = at::ones({2}, dtype).requires_grad_();
    saved.values_.sum().backward();
    const auto loss = (other * saved.values_.grad()).sum();
    by_8.unscale_(optimizer);
    EXPECT_THROW(loss.backward(), c10::Error) << dtype;
    by_8.step(optimizer);
    EXPECT_EQ(saved.values(), (std::vector<float>{-0.125, -0.125})) << dtype;
  }
}

TEST_ON_RANKS(GradScaler, APowerOfTwoChangesNoBit, 2) {
  const auto train = [&](bool enabled) {
    auto model = torch::nn::Linear(3, 2);
    for (auto& parameter : model->parameters()) torch::nn::init::constant_(parameter, 0.3);
    torch::optim::Adam adam(model->parameters(), 0.01);
    DistributedDataParallel ddp(model, world);
    GradScaler scaler(world, {.enabled = enabled});
    for (int step = 0; step < 4; ++step) {
      adam.zero_grad();
      const auto input = at::sin(at::arange(12, at::kFloat) + 3 * world.rank() + step);
      scaler.scale(ddp(input.view({4, 3})).square().mean()).backward();
      EXPECT_TRUE(scaler.step(adam));
      scaler.update();
    }
    return torch::nn::utils::parameters_to_vector(model->parameters()).detach();
  };
  EXPECT_TRUE(train(true).equal(train(false)));
}

TEST_ON_RANKS(GradScaler, GoesOnFromAState, 2) {
  GradScaler scaler(world, {.init_scale = 4, .growth_interval = 3});
  GradScaler other(world, {.growth_interval = 3});
  Parameter parameter;
  const auto train = [&](GradScaler& with) {
    parameter.set_gradient({1, 1});
    with.step(parameter.sgd);
    with.update();
  };
  for (int step = 0; step < 5; ++step) train(scaler);
  other.load_state(scaler.state());
  EXPECT_EQ(other.get_scale(), 8);
  train(other);
  EXPECT_EQ(other.get_scale(), 16) << "two steps were counted before";
  auto negative = other.state();
  negative["scale"] = at::scalar_tensor(-1.F);
  for (const State& bad : {State{}, negative}) EXPECT_THROW(other.load_state(bad), InvalidArgument);
  EXPECT_EQ(other.get_scale(), 16);
}

TEST_ON_RANKS(GradScaler, RefusesCallsInAnotherOrder, 1) {
  GradScaler scaler(world);
  Parameter parameter;
  parameter.set_gradient({1, 1});
  EXPECT_THROW(scaler.update(), InvalidArgument);
  scaler.unscale_(parameter.sgd);
  EXPECT_THROW(scaler.unscale_(parameter.sgd), InvalidArgument);
  scaler.step(parameter.sgd);
  EXPECT_THROW(scaler.step(parameter.sgd), InvalidArgument);
  scaler.update();
  Parameter half(at::kHalf);
  half.set_gradient({1, 1}, at::kHalf);
  EXPECT_THROW(scaler.step(half.sgd), InvalidArgument);
  for (const GradScalerOptions& bad :
       {GradScalerOptions{.init_scale = 0}, GradScalerOptions{.init_scale = 1e39},
        GradScalerOptions{.init_scale = 1e-39}, GradScalerOptions{.growth_factor = 0.5},
        GradScalerOptions{.backoff_factor = 1}, GradScalerOptions{.growth_interval = 0}}) {
    EXPECT_THROW(GradScaler(world, bad), InvalidArgument);
  }
  EXPECT_THROW(scaler.update(-1), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::grad_scaler
