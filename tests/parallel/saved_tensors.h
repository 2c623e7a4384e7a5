#pragma once

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
    to(own_device(), at::kDouble);
    set_values(*this, 5);
  }
  at::Tensor forward(at::Tensor x) override {
    x = in->forward(x);
    return out->forward((recomputes_ ? recompute(norm, x) : norm->forward(x)).tanh());
  }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(4, 4));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(4));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(4, 2));

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
