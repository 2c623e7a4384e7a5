#pragma once

#include "lockstep/sync_batch_norm.h"
#include "tests/parallel/models.h"

namespace lockstep::testing {

constexpr std::int64_t channels = 6;

/// Samples of each rank of n: unequal, and none on some.
inline std::vector<std::int64_t> unequal_parts(int n) {
  const std::vector<std::int64_t> parts{3, 0, 2, 1, 4, 0, 5};
  return {parts.begin(), parts.begin() + n};
}

/// A batch of all ranks [N, channels, …]: far from zero, and further from rank to rank, so that
/// statistics of one rank's part are not the batch's.
struct WholeBatch {
  WholeBatch(std::vector<std::int64_t> samples, std::vector<std::int64_t> behind,
             std::uint64_t seed = 1)
      : parts(std::move(samples)) {
    for (const auto count : parts) total += count;
    std::vector<std::int64_t> sizes{total, channels};
    sizes.insert(sizes.end(), behind.begin(), behind.end());
    input = random(sizes, seed, at::kDouble) + 3e4;
    gradient = random(sizes, seed + 1000, at::kDouble);
    for (std::size_t rank = 0; rank < parts.size(); ++rank)
      part(input, static_cast<int>(rank)) += 2 * static_cast<double>(rank);
  }

  at::Tensor part(const at::Tensor& whole, int rank) const {
    std::int64_t begin = 0;
    for (int before = 0; before < rank; ++before) begin += parts[static_cast<std::size_t>(before)];
    return whole.narrow(0, begin, parts[static_cast<std::size_t>(rank)]);
  }

  std::vector<std::int64_t> parts;
  std::int64_t total = 0;
  at::Tensor input, gradient;
};

/// Outputs, gradients and running statistics of a batch norm. A tensor is undefined if the layer
/// has none.
struct NormResult {
  at::Tensor output, input_gradient, weight_gradient, bias_gradient, running_mean, running_var;
};

/// One process with the whole batch: LibTorch's operator, given the layer's own tensors, which it
/// does not touch.
inline NormResult in_one_process(const at::Tensor& input, const at::Tensor& gradient,
                                 const SyncBatchNormImpl& norm, double momentum) {
  const auto copy = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.detach().to(at::kDouble, false, true) : tensor;
  };
  NormResult result;
  auto x = input.clone().requires_grad_();
  auto weight = copy(norm.weight), bias = copy(norm.bias);
  if (weight.defined()) weight.requires_grad_();
  if (bias.defined()) bias.requires_grad_();
  result.running_mean = copy(norm.running_mean);
  result.running_var = copy(norm.running_var);
  auto output = at::batch_norm(x, weight, bias, result.running_mean, result.running_var, true,
                               momentum, norm.options.eps(), false);
  output.backward(gradient);
  result.output = output.detach();
  result.input_gradient = x.grad();
  if (weight.defined()) result.weight_gradient = weight.grad();
  if (bias.defined()) result.bias_gradient = bias.grad();
  return result;
}

/// The sum of a parameter's gradients; undefined if there is no parameter.
inline at::Tensor sum_of_ranks(const at::Tensor& parameter, const Group& world) {
  if (!parameter.defined()) return {};
  const auto sum = parameter.grad().to(at::kDouble, false, true).contiguous();
  world.all_reduce(sum).wait();
  return sum;
}

/// Largest difference, relative to the largest value; 0 for two undefined or empty tensors.
inline double deviation(const at::Tensor& got, const at::Tensor& expected) {
  if (got.defined() != expected.defined()) return 1e30;
  if (!got.defined()) return 0;
  if (got.sizes() != expected.sizes()) return 1e30;
  if (got.numel() == 0) return 0;
  const double size = expected.abs().max().item<double>();
  return (got.to(at::kDouble) - expected).abs().max().item<double>() / (size > 0 ? size : 1);
}

inline void expect_same_bits(const at::Tensor& mine, const Group& world) {
  if (!mine.defined()) return;
  EXPECT_TRUE(same_on_all_ranks(mine, world));
}

/// Parameters that are not those of a new layer.
inline void set_parameters(const SyncBatchNormImpl& norm) {
  const torch::NoGradGuard no_grad;
  if (!norm.weight.defined()) return;
  norm.weight.copy_(random({channels}, 11, at::kDouble) + 2);
  norm.bias.copy_(random({channels}, 12, at::kDouble));
}

}  // namespace lockstep::testing
