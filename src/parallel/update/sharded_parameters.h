#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/exchange.h"
#include "lockstep/group.h"
#include "lockstep/work.h"
#include "parallel/buckets/bucket_reducers.h"
#include "parallel/buckets/shard_range.h"

namespace lockstep::inline v0_2::detail {

/// Tensors over flat memory, one per slice: in the slice's place, with its parameter's sizes and
/// strides.
std::vector<at::Tensor> lay_out(const Bucket& bucket, const at::Tensor& flat);
/// Replaces a tensor by a copy in memory of its own if it uses the memory of values. When memory is
/// short, it stays there and keeps that memory alive.
void leave(const at::Tensor& tensor, const at::Tensor& values) noexcept;

/// The parameters of one bucket, in the layout of its gradients.
struct ShardedBucket {
  const BucketReducer* reducer;
  ShardRange own;                    ///< elements that this rank updates
  at::Tensor flat;                   ///< the parts of all ranks
  std::vector<at::Tensor> values{};  ///< per slice, the parameter's memory in flat
  /// Per slice, the elements that this rank updates: flat, maybe empty.
  std::vector<at::Tensor> parts{};

  std::span<const Bucket::Slice> slices() const { return reducer->bucket.slices(); }
  /// This rank's part of the averaged gradients; null if each exchange gives every rank the whole.
  GradientShard* shard() const { return reducer->shard.get(); }
};

/// A model's parameters in one flat tensor for each bucket, so that a rank updates a range of it
/// and the ranks gather the ranges in place.
class ShardedParameters {
 public:
  /// Moves the parameters. The reducers must outlive it.
  /// Throws: CommError when memory is short.
  ShardedParameters(std::span<const BucketReducer> reducers, const Group& group);
  /// Copies the parameters into memory of their own.
  ~ShardedParameters();
  ShardedParameters(const ShardedParameters&) = delete;
  ShardedParameters& operator=(const ShardedParameters&) = delete;

  std::span<const ShardedBucket> buckets() const { return buckets_; }
  const Group& group() const { return group_; }

  /// Moves parameters back, with their current values, that the program has moved to other memory.
  void move_back();

  /// The parts of averaged gradients that this rank has instead of the whole. discard_gradients()
  /// makes them undefined.
  std::vector<at::Tensor> gradients() const;
  void discard_gradients() const;

  /// Begins to gather the ranges of one bucket from all ranks. Ranks: all of the group.
  Work gather(const ShardedBucket& bucket) const;

 private:
  Group group_;
  std::vector<ShardedBucket> buckets_;
};

}  // namespace lockstep::detail
