#pragma once

#include <torch/nn.h>

#include <utility>
#include <vector>

#include "lockstep/moving_average.h"

namespace lockstep::testing {

/// One parameter, whose value a test sets.
struct Single : torch::nn::Module {
  explicit Single(at::Tensor first = torch::zeros({3}, torch::kDouble)) {
    const bool trainable = first.is_floating_point();
    value = register_parameter("value", std::move(first), trainable);
  }
  void set(double to) {
    const torch::NoGradGuard no_grad;
    value.fill_(to);
  }
  at::Tensor value;
};

/// The values of the averaged model.
inline std::vector<at::Tensor> values_of(MovingAverage& average, const torch::nn::Module& model) {
  const auto averaged = average.apply();
  std::vector<at::Tensor> values;
  for (const auto& tensor : model.parameters()) values.push_back(tensor.detach().clone());
  for (const auto& tensor : model.buffers()) values.push_back(tensor.clone());
  return values;
}

}  // namespace lockstep::testing
