#include "parallel/buckets/transient_memory.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>

#include "sync/exchange_order.h"

namespace lockstep::inline v0_2::detail {

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
