#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <torch/nn/utils/clip_grad.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/operation_error.h"
#include "group/gather.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/group.h"
#include "parallel/update/own_step.h"
#include "parallel/update/sharded_parameters.h"

namespace lockstep::inline v0_2 {
namespace {

/// The share of a tensor in the norm of all as one vector: the power of its norm, or its largest
/// magnitude.
double term_of(const at::Tensor& values, double type) {
  if (values.is_sparse()) return term_of(values.coalesce()._values(), type);
  if (values.numel() == 0) return 0;
  const double norm = at::linalg_vector_norm(values, type, {}, false, at::kDouble).item<double>();
  return std::isinf(type) ? norm : std::pow(norm, type);
}

double sum_of(double a, double b, double type) {
  if (!std::isinf(type)) return a + b;
  return std::isnan(b) || b > a ? b : a;  // std::max could drop NaN
}

/// Clips gradients of which this rank has parts, and gradients that every rank has.
double clip(const std::vector<at::Tensor>& parts, const std::vector<at::Tensor>& whole,
            const Group& group, double max_norm, double norm_type) {
  double own = 0;
  for (const auto& part : parts) own = sum_of(own, term_of(part, norm_type), norm_type);
  if (group.rank() == 0) {
    for (const auto& gradient : whole) own = sum_of(own, term_of(gradient, norm_type), norm_type);
  }
  double norm = 0;
  for (const double sum : detail::gather_values(own, group)) norm = sum_of(norm, sum, norm_type);
  if (!std::isinf(norm_type)) norm = std::pow(norm, 1 / norm_type);
  const double factor = max_norm / (norm + 1e-6);
  if (!(factor >= 1)) {  // also for NaN
    for (const auto* gradients : {&parts, &whole}) {
      for (const auto& gradient : *gradients) gradient.mul_(factor);
    }
  }
  return norm;
}

}  // namespace

double clip_grad_norm(DistributedOptimizer& optimizer, double max_norm, double norm_type) {
  constexpr const char* operation = "clip_grad_norm";
  return detail::as_operation(operation, [&] {
    if (!(max_norm >= 0)) {
      detail::throw_invalid(operation, "got max_norm = ", max_norm, ", expected 0 or more");
    }
    if (!(norm_type >= 1)) {
      detail::throw_invalid(operation, "got norm_type = ", norm_type,
                            ", expected 1 or more, such as 2 or infinity");
    }
    if (optimizer.replicas_may_differ()) {
      detail::throw_invalid(
          operation,
          "got a strategy that does not average every gradient, so that the ranks "
          "have different gradients, expected one that does, such as fp32; or clip this rank's "
          "own by torch::nn::utils::clip_grad_norm_()");
    }
    optimizer.average_gradients();
    const auto parameters = detail::all_parameters(optimizer.optimizer());
    std::vector<at::Tensor> whole;
    for (const auto& parameter : parameters) {
      if (parameter.grad().defined()) whole.push_back(parameter.grad());
    }
    const auto* const sharded = detail::ShardedParameters::of(optimizer.optimizer());
    const bool has_parts = sharded != nullptr && sharded->divides_gradients();
    // LibTorch's function does not scale sparse gradients.
    if (!has_parts && std::ranges::none_of(whole, &at::Tensor::is_sparse))
      return torch::nn::utils::clip_grad_norm_(parameters, max_norm, norm_type);
    const at::NoGradGuard no_grad;
    return clip(has_parts ? sharded->gradients() : std::vector<at::Tensor>(), whole,
                optimizer.group(), max_norm, norm_type);
  });
}

}  // namespace lockstep
