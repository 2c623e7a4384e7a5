#include "lockstep/train/tally.h"

#include <ATen/core/grad_mode.h>

#include "lockstep/core/error.h"
#include "lockstep/core/text.h"

namespace lockstep {

namespace {

Score mean(double loss, double right, double samples) {
  if (samples == 0) return {};
  return {.loss = loss / samples,
          .accuracy = right / samples,
          .samples = static_cast<std::int64_t>(samples)};
}

}  // namespace

void Tally::add(const at::Tensor& mean_loss, const at::Tensor& outputs, const at::Tensor& targets) {
  if (outputs.dim() != 2 || targets.dim() != 1 || outputs.size(0) != targets.size(0))
    throw InvalidArgument(detail::concat("Tally: got outputs ", outputs.sizes(), " and targets ",
                                         targets.sizes(), ", expected [B, classes] and [B]"));
  const at::NoGradGuard no_grad;
  add(mean_loss.item<double>(), outputs.argmax(1).eq(targets).sum().item<std::int64_t>(),
      targets.size(0));
}

void Tally::add(double mean_loss, std::int64_t right, std::int64_t samples) {
  loss_ += mean_loss * static_cast<double>(samples);
  right_ += right;
  samples_ += samples;
}

Score Tally::score() const {
  return mean(loss_, static_cast<double>(right_), static_cast<double>(samples_));
}

Score Tally::score(const Group& group) const {
  // Counts in doubles: exact up to 2^53 samples.
  const at::Tensor sums = group.empty({3}, at::kDouble);
  double* const sum = sums.mutable_data_ptr<double>();
  sum[0] = loss_;
  sum[1] = static_cast<double>(right_);
  sum[2] = static_cast<double>(samples_);
  group.all_reduce(sums).wait();
  return mean(sum[0], sum[1], sum[2]);
}

}  // namespace lockstep
