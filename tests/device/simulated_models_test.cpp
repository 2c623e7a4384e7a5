#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/autocast.h"
#include "tests/device/on_devices.h"

namespace lockstep::simulation {
namespace {

/// Models and losses on the simulated device.
class SimulatedModels : public testing::OnSimulation {
 protected:
  SimulatedModels() {
    install();
    synchronize_all();
    take_races();
  }
  ~SimulatedModels() override {
    synchronize_all();
    EXPECT_THAT(take_races(), ::testing::IsEmpty());
  }
  const at::Device device{device_type(), 0};
};

TEST_F(SimulatedModels, MoveToTheDeviceAndBack) {
  torch::nn::Linear model(3, 4);
  const auto weight = model->weight.detach().clone();
  model->to(device);
  EXPECT_EQ(model->weight.device(), device);
  model->to(at::kDouble);
  model->forward(at::ones({2, 3}, model->weight.options())).sum().backward();
  EXPECT_EQ(model->weight.grad().device(), device);
  model->to(at::kFloat);
  model->to(at::kCPU);
  EXPECT_TRUE(model->weight.equal(weight));
}

TEST_F(SimulatedModels, AreSavedAndLoaded) {
  torch::nn::Linear model(3, 4);
  model->to(device);
  torch::optim::Adam optimizer(model->parameters(), 0.1);
  model->forward(at::ones({2, 3}, at::TensorOptions(device))).sum().backward();
  optimizer.step();
  std::stringstream file, state;
  torch::save(model, file);
  torch::save(optimizer, state);
  torch::nn::Linear loaded(3, 4);
  torch::load(loaded, file, device);
  EXPECT_EQ(loaded->weight.device(), device);
  EXPECT_TRUE(loaded->weight.equal(model->weight));
  torch::optim::Adam restored(loaded->parameters(), 0.1);
  torch::load(restored, state, device);
  loaded->weight.mutable_grad() = model->weight.grad();
  loaded->bias.mutable_grad() = model->bias.grad();
  restored.step();
  optimizer.step();
  EXPECT_TRUE(loaded->weight.equal(model->weight));
}

TEST_F(SimulatedModels, LossesAndGradientsEqualTheCpu) {
  using Loss = std::function<at::Tensor(const at::Tensor&)>;
  const std::vector<std::pair<std::string, Loss>> losses{
      {"mse", [](const at::Tensor& x) { return at::mse_loss(x, at::zeros_like(x)); }},
      {"l1", [](const at::Tensor& x) { return at::l1_loss(x, at::zeros_like(x)); }},
      {"smooth l1", [](const at::Tensor& x) { return at::smooth_l1_loss(x, at::zeros_like(x)); }},
      {"binary cross-entropy",
       [](const at::Tensor& x) {
         return at::binary_cross_entropy(at::sigmoid(x), at::zeros_like(x));
       }},
      {"with logits",
       [](const at::Tensor& x) {
         return at::binary_cross_entropy_with_logits(x, at::ones_like(x));
       }},
      {"smoothed labels",
       [](const at::Tensor& x) {
         const auto labels = at::zeros({x.size(0)}, x.options().dtype(at::kLong));
         return at::cross_entropy_loss(x, labels, {}, at::Reduction::Mean, -100, 0.1);
       }},
      {"pooling",
       [](const at::Tensor& x) {
         const auto images = x.view({2, 2, 4, 4});
         return at::avg_pool2d(images, 2).sum() + at::adaptive_avg_pool2d(images, {3, 3}).sum() +
                at::adaptive_avg_pool2d(images, {1, 1}).sum();
       }},
      {"norms",
       [](const at::Tensor& x) {
         return (at::group_norm(x.view({2, 4, 8}), 2) * x.view({2, 4, 8})).sum();
       }},
      {"transposed convolution",
       [](const at::Tensor& x) {
         return at::conv_transpose2d(x.view({2, 2, 4, 4}), x.view({2, 2, 4, 4})).sum();
       }},
      {"grouped convolution",
       [](const at::Tensor& x) {
         const auto weight = x.flatten().narrow(0, 0, 18).view({2, 1, 3, 3});
         return at::conv2d(x.view({2, 2, 4, 4}), weight, {}, 1, 1, 1, 2).sum();
       }},
  };
  torch::manual_seed(3);
  const auto values = at::randn({4, 16});
  for (const auto& [name, loss] : losses) {
    SCOPED_TRACE(name);
    const auto run = [&, f = loss](at::Device where) {
      auto x = values.to(where).clone().requires_grad_();
      auto result = f(x);
      result.backward();
      return std::pair(result.detach().cpu(), x.grad().cpu());
    };
    const auto cpu = run(at::kCPU);
    const auto sim = run(device);
    EXPECT_TRUE(cpu.first.equal(sim.first));
    EXPECT_TRUE(cpu.second.equal(sim.second));
  }
}

TEST_F(SimulatedModels, ATransformerTrains) {
  torch::manual_seed(4);
  torch::nn::TransformerEncoderLayer layer(
      torch::nn::TransformerEncoderLayerOptions(8, 2).dropout(0.1));
  layer->to(device);
  torch::optim::SGD optimizer(layer->parameters(), 0.01);
  const auto x = at::randn({5, 2, 8}, at::TensorOptions(device));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    layer->forward(x).square().mean().backward();
    optimizer.step();
  }
  for (const auto& p : layer->parameters()) EXPECT_TRUE(p.isfinite().all().item<bool>());
}

TEST_F(SimulatedModels, AutocastLowersThePrecision) {
  torch::nn::Linear model(3, 4);
  model->to(device);
  at::Tensor loss;
  {
    const Autocast lower(at::kBFloat16, device.type());
    const auto y = model->forward(at::ones({2, 3}, at::TensorOptions(device)));
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    loss = at::mse_loss(y, at::zeros_like(y));
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
  }
  loss.backward();
  EXPECT_EQ(model->weight.grad().scalar_type(), at::kFloat);
}

TEST_F(SimulatedModels, LossScalingWaitsForNothing) {
  std::vector<at::Tensor> gradients{at::ones({4}, device), at::ones({3}, device)};
  auto found = at::zeros({}, device);
  const auto factor = at::full({}, 0.5, device);
  synchronize_all();
  const auto before = counts(0);
  at::_amp_foreach_non_finite_check_and_unscale_(gradients, found, factor);
  EXPECT_EQ((counts(0) - before).kernels, 1);
  EXPECT_EQ((counts(0) - before).host_synchronisations, 0);
  EXPECT_EQ(found.item<float>(), 0);
  EXPECT_EQ(gradients[1].sum().item<float>(), 1.5);
}

}  // namespace
}  // namespace lockstep::simulation
