#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "lockstep/exchange.h"
#include "parallel/buckets/shard_range.h"

namespace lockstep::inline v0_2::detail {

/// Where the part of an exchange is received.
enum class PartMemory {
  own,     ///< in memory of the GradientShard: the bucket's is used by other buckets, too
  bucket,  ///< in its place in the bucket, whose memory is as long as the parts of all ranks
};

/// This rank's part of the averaged gradients of one bucket. A second exchange before the
/// optimizer's step adds to the first one's mean.
class GradientShard {
 public:
  /// The bucket must outlive it.
  GradientShard(const Bucket& bucket, PartMemory memory);

  PartMemory memory() const { return memory_; }
  /// Call before a backward changes the bucket. Keeps a mean that no step has used.
  void keep();

  /// The tensor that receives this rank's part of an exchange.
  const at::Tensor& begin_exchange();
  /// Call after the exchange, for each slice whose gradient some rank has changed.
  void add(std::size_t slice);
  /// Call after the last add().
  void end_exchange() { incoming_.reset(); }

  /// This rank's part of a slice's gradient: flat; undefined if no rank has computed the gradient.
  const at::Tensor& gradient(std::size_t slice) const { return gradients_[slice]; }
  void discard();

 private:
  at::Tensor part_of(const at::Tensor& flat, std::size_t slice) const;

  const Bucket& bucket_;
  PartMemory memory_;
  ShardRange own_;
  at::Tensor mean_;                    ///< memory of the gradients
  at::Tensor incoming_;                ///< of an exchange that must not overwrite them
  std::vector<at::Tensor> gradients_;  ///< per slice
};

}  // namespace lockstep::detail
