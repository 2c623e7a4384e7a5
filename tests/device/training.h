#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include "lockstep/distributed_data_parallel.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/strategy.h"
#include "tests/device/on_devices.h"

// A model and data for training on devices and on the CPU, with equal values on both.

namespace lockstep::testing {

inline at::Tensor random_values(at::IntArrayRef sizes, std::uint64_t seed, double deviation = 1) {
  return at::empty(sizes).normal_(0, deviation, at::make_generator<at::CPUGeneratorImpl>(seed));
}

/// Gives each parameter values that depend on its position.
inline void draw_parameters(torch::nn::Module& module, double deviation) {
  std::uint64_t seed = 1;
  const torch::NoGradGuard no_grad;
  for (auto& parameter : module.parameters()) {
    parameter.copy_(random_values(parameter.sizes(), seed++, deviation));
  }
}

struct Net : torch::nn::Module {
  explicit Net(at::Device device = at::kCPU) {
    register_module("first", first);
    register_module("norm", norm);
    register_module("second", second);
    register_module("last", last);
    register_parameter("unused", torch::ones({5}));
    draw_parameters(*this, 0.2);
    to(device);
  }
  at::Tensor forward(const at::Tensor& input) {
    auto x = norm(first(input)).relu();
    x = second(x).relu();
    return last(x.flatten(1));
  }
  torch::nn::Conv2d first{torch::nn::Conv2dOptions(1, 4, 3).padding(1)};
  torch::nn::BatchNorm2d norm{4};
  torch::nn::Conv2d second{torch::nn::Conv2dOptions(4, 6, 3).stride(2)};
  torch::nn::Linear last{6 * 3 * 3, 10};
};

inline at::Tensor images(int rank, int step) {
  return random_values({6, 1, 8, 8}, static_cast<std::uint64_t>(100 * rank + step + 1));
}

inline at::Tensor targets(int rank, int step) {
  return at::arange(6, at::kLong).mul(7).add(rank + step).remainder(10);
}

/// Those of this rank, on the group's device.
inline at::Tensor inputs_of(const Group& group, int step) {
  return images(group.rank(), step).to(group.device());
}
inline at::Tensor loss_of(const at::Tensor& outputs, const Group& group, int step) {
  return at::cross_entropy_loss(outputs, targets(group.rank(), step).to(group.device()));
}

/// Parameters and buffers after some steps, on the CPU.
inline std::vector<at::Tensor> values(const torch::nn::Module& model) {
  std::vector<at::Tensor> all;
  for (const auto& tensor : model.parameters()) all.push_back(tensor.detach().cpu().clone());
  for (const auto& tensor : model.buffers()) all.push_back(tensor.cpu().clone());
  return all;
}

/// tolerance: 0 for equal bits.
inline void expect_equal(const std::vector<at::Tensor>& got,
                         const std::vector<at::Tensor>& expected, double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].sizes(), expected[i].sizes()) << "tensor " << i;
    if (got[i].numel() == 0) continue;
    const double distance =
        (got[i].to(at::kDouble) - expected[i].to(at::kDouble)).abs().max().item<double>();
    EXPECT_LE(distance, tolerance) << "tensor " << i;
  }
}

/// For tests of training that has the results of the CPU.
class ComparedWithCpu : public OnDelayedDevices {
 protected:
  void compare(const std::function<std::vector<at::Tensor>(const Group&)>& train, double of_nccl,
               double of_gpus) const {
    run([&](const Group& group) {
      const auto expected = train(group.host());
      expect_equal(train(group), expected, tolerance(of_nccl, of_gpus));
    });
  }
};

}  // namespace lockstep::testing
