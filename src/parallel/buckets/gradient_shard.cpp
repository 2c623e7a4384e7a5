#include "parallel/buckets/gradient_shard.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdint>

namespace lockstep::inline v0_2::detail {

GradientShard::GradientShard(const Bucket& bucket, PartMemory memory)
    : bucket_(bucket),
      memory_(memory),
      own_(shard_of(bucket.values(), bucket.group())),
      gradients_(bucket.slices().size()) {}

const at::Tensor& GradientShard::begin_exchange() {
  const bool has_gradients = std::ranges::any_of(
      gradients_, [](const at::Tensor& gradient) { return gradient.defined(); });
  auto& part = has_gradients ? incoming_ : mean_;
  if (memory_ == PartMemory::bucket) {
    part = flat_part(bucket_.values(), own_.begin, own_.length());
  } else if (!part.defined()) {
    part = bucket_.group().empty({static_cast<std::int64_t>(own_.length())},
                                 bucket_.values().scalar_type());
  }
  return part;
}

void GradientShard::keep() {
  if (memory_ == PartMemory::own) return;
  for (auto& gradient : gradients_) {
    if (gradient.defined()) gradient = gradient.clone();
  }
}

void GradientShard::add(std::size_t slice) {
  const at::NoGradGuard no_grad;
  auto& gradient = gradients_[slice];
  const bool accumulates = gradient.defined();
  if (!accumulates) gradient = part_of(mean_, slice);
  if (!incoming_.defined()) return;
  const auto part = part_of(incoming_, slice);
  if (accumulates) {
    gradient.add_(part);
  } else {
    gradient.copy_(part);
  }
}

void GradientShard::discard() {
  for (auto& gradient : gradients_) gradient.reset();
}

at::Tensor GradientShard::part_of(const at::Tensor& flat, std::size_t slice) const {
  const auto& of = bucket_.slices()[slice];
  const auto range = intersection(own_, of);
  // A part without elements may begin outside of this rank's range.
  const auto begin = range.length() == 0 ? 0 : of.offset + range.begin - own_.begin;
  return flat_part(flat, begin, range.length());
}

}  // namespace lockstep::detail
