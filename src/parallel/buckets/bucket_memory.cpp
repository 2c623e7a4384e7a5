#include "parallel/buckets/bucket_memory.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>

namespace lockstep::inline v0_2::detail {
namespace {

/// Elements of a bucket that each rank updates, rounded up to cache lines: rank r those from
/// r · shard_length() on.
std::size_t shard_length(std::size_t numel, std::size_t element_size, int ranks) {
  const auto count = static_cast<std::size_t>(ranks);
  return round_up(numel, slice_alignment / element_size * count) / count;
}

}  // namespace

ShardRange shard_of(const at::Tensor& values, const Group& group) {
  const auto length =
      shard_length(static_cast<std::size_t>(values.numel()), values.element_size(), group.size());
  const auto begin = length * static_cast<std::size_t>(group.rank());
  return {.begin = begin, .end = begin + length};
}

ShardRange intersection(const ShardRange& own, const Bucket::Slice& slice) {
  const auto numel = static_cast<std::size_t>(slice.values.numel());
  const auto clamp = [&](std::size_t place) {
    return std::clamp(place, slice.offset, slice.offset + numel) - slice.offset;
  };
  return {.begin = clamp(own.begin), .end = clamp(own.end)};
}

at::Tensor flat_part(const at::Tensor& flat, std::size_t begin, std::size_t length) {
  auto part = at::empty({0}, flat.options());
  part.set_(flat.storage(), flat.storage_offset() + static_cast<std::int64_t>(begin),
            {static_cast<std::int64_t>(length)}, {1});
  return part;
}

at::Tensor bucket_values(const PlannedBucket& planned, std::optional<PartMemory> parts,
                         const Group& group) {
  auto length = planned.numel;
  if (parts == PartMemory::bucket) {  // the last parts may extend beyond the bucket
    length = shard_length(planned.numel, c10::elementSize(planned.dtype), group.size()) *
             static_cast<std::size_t>(group.size());
  }
  const auto memory = group.empty({static_cast<std::int64_t>(length)}, planned.dtype).zero_();
  return flat_part(memory, 0, planned.numel);
}

GradientShard::GradientShard(const Bucket& bucket, PartMemory memory)
    : bucket_(bucket),
      memory_(memory),
      own_(shard_of(bucket.values(), bucket.group())),
      gradients_(bucket.slices().size()),
      has_been_added_(bucket.slices().size()) {}

const at::Tensor& GradientShard::begin_exchange() {
  auto& part = has_gradients() ? incoming_ : mean_;
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

void GradientShard::add(std::size_t slice, double factor) {
  const at::NoGradGuard no_grad;
  has_been_added_[slice] = has_mean_ = true;
  auto& gradient = gradients_[slice];
  if (factor == 0) gradient.reset();  // a factor of 0 must also remove NaN
  const bool accumulates = gradient.defined();
  if (!accumulates) {
    gradient = part_of(mean_, slice);
  } else if (factor != 1) {
    gradient.mul_(factor);
  }
  if (!incoming_.defined()) return;
  const auto part = part_of(incoming_, slice);
  if (accumulates) {
    gradient.add_(part);
  } else {
    gradient.copy_(part);
  }
}

bool GradientShard::has_gradients() const {
  return std::ranges::any_of(gradients_, &at::Tensor::defined);
}

void GradientShard::release() {
  has_mean_ = false;
  for (auto& gradient : gradients_) gradient.reset();
}

void GradientShard::discard() {
  release();
  has_been_added_.assign(gradients_.size(), false);
}

void GradientShard::zero() {
  const at::NoGradGuard no_grad;
  has_mean_ = false;
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    if (!has_been_added_[i]) continue;
    if (!gradients_[i].defined()) gradients_[i] = part_of(mean_, i);
    gradients_[i].zero_();
  }
}

at::Tensor GradientShard::part_of(const at::Tensor& flat, std::size_t slice) const {
  const auto& of = bucket_.slices()[slice];
  const auto range = intersection(own_, of);
  // A part without elements may begin outside of this rank's range.
  const auto begin = range.length() == 0 ? 0 : of.offset + range.begin - own_.begin;
  return flat_part(flat, begin, range.length());
}

BucketCaps TransientMemory::limited(BucketCaps caps) {
  constexpr std::size_t largest = std::size_t{4} << 20;
  return {.first = std::min(caps.first, largest), .rest = std::min(caps.rest, largest)};
}

TransientMemory::TransientMemory(std::span<const PlannedBucket> plan, const Group& group) {
  std::size_t bytes = 0;
  for (const auto& planned : plan) {
    const bool has_one = planned.slices.size() == 1;
    own_.push_back(has_one ? at::empty({static_cast<std::int64_t>(planned.numel)}, planned.dtype)
                           : at::Tensor());
    if (!has_one) bytes = std::max(bytes, planned.numel * c10::elementSize(planned.dtype));
  }
  while (blocks_.size() < std::min(exchanges_at_once, plan.size()))
    blocks_.push_back(group.empty({static_cast<std::int64_t>(bytes)}, at::kByte));
}

at::Tensor TransientMemory::in_block(std::size_t position, std::size_t numel,
                                     at::ScalarType dtype) const {
  auto values = at::empty({0}, dtype);
  values.set_(blocks_[position % blocks_.size()].storage(), 0, {static_cast<std::int64_t>(numel)},
              {1});
  return values;
}

at::Tensor TransientMemory::values(std::size_t bucket, const PlannedBucket& planned) const {
  return takes_gradient(bucket) ? own_[bucket] : in_block(bucket, planned.numel, planned.dtype);
}

void TransientMemory::begin_use(Bucket& bucket, std::size_t position) const {
  if (takes_gradient(bucket.index())) return;
  const auto& values = bucket.values();
  bucket.move_to(
      in_block(position, static_cast<std::size_t>(values.numel()), values.scalar_type()));
}

void TransientMemory::end_use(Bucket& bucket) const {
  if (takes_gradient(bucket.index())) bucket.move_to(own_[bucket.index()]);
}

}  // namespace lockstep::detail
