#include "parallel/buckets/shard_range.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>

#include "parallel/buckets/bucket_plan.h"

namespace lockstep::inline v0_2::detail {

std::size_t shard_length(std::size_t numel, std::size_t element_size, int ranks) {
  const auto line = slice_alignment / element_size;
  const auto stride = line * static_cast<std::size_t>(ranks);
  return (numel + stride - 1) / stride * line;
}

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

}  // namespace lockstep::detail
