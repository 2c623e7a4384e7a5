#include "lockstep/autocast.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <stdexcept>

#include "lockstep/error.h"

namespace lockstep::testing {
namespace {

TEST(Autocast, LastsAsLongAsItLivesAndIsOfOneDevice) {
  // A layer, because casts of parameters are cached.
  torch::nn::Linear layer(8, 4);
  const auto dtype_of_products = [&] { return layer(at::ones({3, 8})).scalar_type(); };
  EXPECT_EQ(dtype_of_products(), at::kFloat);
  {
    const Autocast lower;
    EXPECT_EQ(dtype_of_products(), at::kBFloat16);
    {
      const Autocast off(at::kFloat);
      EXPECT_EQ(dtype_of_products(), at::kFloat);
      const Autocast half(at::kHalf);
      EXPECT_EQ(dtype_of_products(), at::kHalf);
    }
    EXPECT_EQ(dtype_of_products(), at::kBFloat16);
  }
  EXPECT_EQ(dtype_of_products(), at::kFloat);
  try {
    const Autocast lower;
    throw std::runtime_error("in the forward");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(dtype_of_products(), at::kFloat);
  EXPECT_THROW(Autocast{at::kDouble}, InvalidArgument);
  EXPECT_EQ(dtype_of_products(), at::kFloat);
  {
    const Autocast lower(at::kBFloat16, at::kCUDA);  // whose default is half
    EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCUDA));
    EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCUDA), at::kBFloat16);
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  }
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCUDA));
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCUDA), at::kHalf);
}

TEST(Autocast, LeavesParametersAndGradientsAsTheyAre) {
  torch::nn::Linear layer(8, 4);
  const at::Tensor inputs = at::randn({3, 8});
  const auto loss = [&] { return torch::mse_loss(layer(inputs), at::zeros({3, 4})); };
  loss().backward();
  const at::Tensor exact = layer->weight.grad().clone();

  for (const double scale : {1.0, 0.5}) {  // the second would see parameters cast for the first
    {
      const torch::NoGradGuard no_grad;
      layer->weight.mul_(scale);
      layer->bias.mul_(scale);
      layer->zero_grad();
    }
    at::Tensor lower;
    {
      const Autocast autocast;
      lower = loss();
    }
    lower.backward();
    EXPECT_EQ(layer->weight.grad().scalar_type(), at::kFloat);
    // The loss has no constant part: all of it scales with the layer.
    const double apart = (layer->weight.grad() - scale * exact).norm().item<double>();
    EXPECT_GT(apart, 0);
    EXPECT_LT(apart, 0.02 * scale * exact.norm().item<double>());
  }
}

}  // namespace
}  // namespace lockstep::testing
