#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/exchange.h"
#include "lockstep/group.h"
#include "parallel/buckets/bucket_plan.h"

namespace lockstep::inline v0_2::detail {

/// Memory of buckets that have some during their exchange only (Shard::gradients). The buckets of
/// several parameters use a few blocks of the group's memory in turn. A bucket of one parameter is
/// exchanged in the memory of its gradient, or in its own memory if a weight factor changes the
/// values.
class TransientMemory {
 public:
  /// The caps of such buckets, so that the blocks are small. A larger parameter has a bucket of its
  /// own.
  static BucketCaps limited(BucketCaps caps);

  /// Throws: CommError when memory is short.
  TransientMemory(std::span<const PlannedBucket> plan, const Group& group);

  /// The values of a bucket at its construction. The blocks hold nothing before its first use.
  at::Tensor values(std::size_t bucket, const PlannedBucket& planned) const;
  /// Gives a bucket its memory. Call it when the exchange at the position may begin.
  void begin_use(Bucket& bucket, std::size_t position) const;
  /// Releases the gradient that the bucket took. Call it after the exchange.
  void end_use(Bucket& bucket) const;
  /// Whether the bucket is exchanged in the memory of a gradient, by Bucket::move_to().
  bool takes_gradient(std::size_t bucket) const { return own_[bucket].defined(); }

 private:
  at::Tensor in_block(std::size_t position, std::size_t numel, at::ScalarType dtype) const;

  std::vector<at::Tensor> blocks_;  ///< by position. Units: bytes
  /// Per bucket of one parameter: ordinary memory, which is not resident before it is used, while
  /// all of the group's memory is. Undefined for other buckets.
  std::vector<at::Tensor> own_;
};

}  // namespace lockstep::detail
