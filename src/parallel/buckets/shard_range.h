#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

#include "lockstep/exchange.h"

namespace lockstep::inline v0_2::detail {

/// A range of elements of a bucket or of a slice.
struct ShardRange {
  std::size_t begin = 0;
  std::size_t end = 0;

  std::size_t length() const { return end - begin; }
};

/// Elements of a bucket that each rank updates, rounded up to cache lines: rank r those from
/// r · shard_length() on. The parts of the last ranks may extend beyond the bucket.
std::size_t shard_length(std::size_t numel, std::size_t element_size, int ranks);

/// The elements of a bucket that this rank updates.
ShardRange shard_of(const at::Tensor& values, const Group& group);

/// The elements of a slice that are in a range of its bucket, relative to the slice.
ShardRange intersection(const ShardRange& own, const Bucket::Slice& slice);

/// Elements of a flat tensor from begin on, as a tensor of its own for autograd.
at::Tensor flat_part(const at::Tensor& flat, std::size_t begin, std::size_t length);

}  // namespace lockstep::detail
