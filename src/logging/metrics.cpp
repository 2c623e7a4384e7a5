#include "lockstep/metrics.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <tuple>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {

namespace {

Score mean(double loss, double right, double among_top, double samples) {
  if (samples == 0) return {};
  return {.loss = loss / samples,
          .accuracy = right / samples,
          .top = among_top / samples,
          .samples = static_cast<std::int64_t>(samples)};
}

std::int64_t count_among_top(const at::Tensor& outputs, const at::Tensor& targets, std::int64_t k) {
  const at::Tensor best = std::get<1>(outputs.topk(std::min(k, outputs.size(1)), 1));
  return best.eq(targets.unsqueeze(1)).sum().item<std::int64_t>();
}

}  // namespace

Tally::Tally(std::int64_t k) : k_(k) {
  if (k < 1) throw InvalidArgument(detail::concat("Tally: got k ", k, ", expected at least 1"));
}

void Tally::add(const at::Tensor& mean_loss, const at::Tensor& outputs, const at::Tensor& targets) {
  if (outputs.dim() != 2 || targets.dim() != 1 || outputs.size(0) != targets.size(0))
    throw InvalidArgument(detail::concat("Tally: got outputs ", outputs.sizes(), " and targets ",
                                         targets.sizes(), ", expected [B, classes] and [B]"));
  const at::NoGradGuard no_grad;
  if (targets.size(0) == 0) return;  // the mean of nothing is no number
  const auto right = outputs.argmax(1).eq(targets).sum().item<std::int64_t>();
  add(mean_loss.item<double>(), right, targets.size(0));
  if (k_ > 1) among_top_ += count_among_top(outputs, targets, k_) - right;
}

void Tally::add(double mean_loss, std::int64_t right, std::int64_t samples) {
  among_top_ += right;
  loss_ += mean_loss * static_cast<double>(samples);
  right_ += right;
  samples_ += samples;
}

Score Tally::score() const {
  return mean(loss_, static_cast<double>(right_), static_cast<double>(among_top_),
              static_cast<double>(samples_));
}

Score Tally::score(const Group& group) const {
  // Counts in doubles: exact up to 2^53 samples.
  const at::Tensor sums = group.empty({4}, at::kDouble);
  double* const sum = sums.mutable_data_ptr<double>();
  sum[0] = loss_;
  sum[1] = static_cast<double>(right_);
  sum[2] = static_cast<double>(among_top_);
  sum[3] = static_cast<double>(samples_);
  group.all_reduce(sums).wait();
  return mean(sum[0], sum[1], sum[2], sum[3]);
}

double throughput(std::int64_t samples, double seconds, const Group& group) {
  const at::Tensor sum = group.empty({1}, at::kDouble);
  const at::Tensor slowest = group.empty({1}, at::kDouble);
  *sum.mutable_data_ptr<double>() = static_cast<double>(samples);
  *slowest.mutable_data_ptr<double>() = seconds;
  group.all_reduce(sum).wait();
  group.all_reduce(slowest, ReduceOp::max).wait();
  const double total = *sum.const_data_ptr<double>();
  return total == 0 ? 0 : total / *slowest.const_data_ptr<double>();
}

}  // namespace lockstep
