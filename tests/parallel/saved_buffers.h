#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>

#include "lockstep/activation_checkpoint.h"
#include "tests/parallel/models.h"

namespace lockstep::testing::saved_tensors {

inline constexpr double rate = 0.1;

using Forward = std::function<at::Tensor(const at::Tensor&)>;

struct Model : torch::nn::Module {
  virtual at::Tensor forward(at::Tensor x) = 0;
};

/// Its batch norm uses the buffers in evaluation mode.
struct Normalised : Model {
  explicit Normalised(bool recomputes = false) : recomputes_(recomputes) {
    register_module("in", in);
    register_module("norm", norm);
    register_module("out", out);
    to(own_device(), at::kDouble);
    set_values(*this, 5);
  }
  at::Tensor forward(at::Tensor x) override {
    x = in->forward(x);
    return out->forward((recomputes_ ? recompute(norm, x) : norm->forward(x)).tanh());
  }
  torch::nn::Linear in{4, 4}, out{4, 2};
  torch::nn::BatchNorm1d norm{4};

 private:
  bool recomputes_;
};

/// A buffer that each forward changes and then multiplies by.
struct Scaled : Model {
  Scaled() { to(own_device()); }
  at::Tensor forward(at::Tensor x) override {
    {
      const at::NoGradGuard no_grad;
      scale.mul_(x.abs().mean() + 0.5);
    }
    return x * p * scale;
  }
  at::Tensor p = register_parameter("p", at::linspace(1, 2, 4, at::kDouble));
  at::Tensor scale = register_buffer("scale", at::full({4}, 1.5, at::kDouble));
};

inline at::Tensor batch(int rank, int index) {
  return random({6, 4}, static_cast<std::uint64_t>(10 * index + rank), at::kDouble) + rank;
}

inline at::Tensor loss_of(const at::Tensor& output) { return output.square().sum(); }

}  // namespace lockstep::testing::saved_tensors
