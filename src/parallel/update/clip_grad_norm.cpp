#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <torch/nn/utils/clip_grad.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/operation_error.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/group.h"
#include "parallel/update/own_step.h"
#include "parallel/update/sharded_parameters.h"

namespace lockstep::inline v0_2 {
namespace {

/// The norm of several vectors as one, from their norms. It accumulates powers in Double, in the
/// order of the calls.
class TotalNorm {
 public:
  explicit TotalNorm(double type) : type_(type) {}

  void add(const at::Tensor& values) {
    if (values.is_sparse()) return add(values.coalesce()._values());
    if (values.numel() == 0) return;
    const double norm =
        at::linalg_vector_norm(values, type_, {}, false, at::kDouble).item<double>();
    add(std::isinf(type_) ? norm : std::pow(norm, type_));
  }
  /// Adds the sum() of another rank.
  void add(double sum) {
    if (!std::isinf(type_)) {
      sum_ += sum;
    } else if (std::isnan(sum) || sum > sum_) {  // std::max could drop NaN
      sum_ = sum;
    }
  }
  /// The sum of powers, or the largest magnitude.
  double sum() const { return sum_; }
  double value() const { return std::isinf(type_) ? sum_ : std::pow(sum_, 1 / type_); }

 private:
  double type_;
  double sum_ = 0;
};

/// Clips gradients of which this rank has parts, and gradients that every rank has.
double clip(const std::vector<at::Tensor>& parts, const std::vector<at::Tensor>& whole,
            const Group& group, double max_norm, double norm_type) {
  TotalNorm own(norm_type);
  for (const auto& part : parts) own.add(part);
  if (group.rank() == 0) {
    for (const auto& gradient : whole) own.add(gradient);
  }
  const auto sum = at::empty({1}, at::kDouble).fill_(own.sum());
  const auto sums = at::empty({group.size()}, at::kDouble);
  group.all_gather(sums, sum).wait();
  TotalNorm total(norm_type);
  for (int rank = 0; rank < group.size(); ++rank) total.add(sums[rank].item<double>());
  const double factor = max_norm / (total.value() + 1e-6);
  if (!(factor >= 1)) {  // also for NaN
    for (const auto* gradients : {&parts, &whole}) {
      for (const auto& gradient : *gradients) gradient.mul_(factor);
    }
  }
  return total.value();
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
          "have different gradients, expected one that does, such as fp32");
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
