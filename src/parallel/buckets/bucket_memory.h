#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/exchange.h"
#include "lockstep/group.h"
#include "parallel/buckets/bucket_plan.h"

// The memory of buckets, and of each rank's part of their means.

namespace lockstep::inline v0_2::detail {

/// A range of elements of a bucket or of a slice.
struct ShardRange {
  std::size_t begin = 0;
  std::size_t end = 0;

  std::size_t length() const { return end - begin; }
};

/// The elements of a bucket that this rank updates, as many on every rank, in rank order. The parts
/// of the last ranks may extend beyond the bucket.
ShardRange shard_of(const at::Tensor& values, const Group& group);

/// The elements of a slice that are in a range of its bucket, relative to the slice.
ShardRange intersection(const ShardRange& own, const Bucket::Slice& slice);

/// Elements of a flat tensor from begin on, as a tensor of its own for autograd.
at::Tensor flat_part(const at::Tensor& flat, std::size_t begin, std::size_t length);

/// Where the part of an exchange is received.
enum class PartMemory : std::uint8_t {
  own,     ///< in memory of the GradientShard: the bucket's is used by other buckets, too
  bucket,  ///< in its place in the bucket, whose memory is as long as the parts of all ranks
};

/// Memory for the values of a bucket for its lifetime.
at::Tensor bucket_values(const PlannedBucket& planned, std::optional<PartMemory> parts,
                         const Group& group);

/// This rank's part of the averaged gradients of one bucket. A second exchange before the
/// optimizer's step adds to the first one's mean, or replaces it where the program has set
/// gradients.
class GradientShard {
 public:
  /// The bucket must outlive it.
  GradientShard(const Bucket& bucket, PartMemory memory);

  PartMemory memory() const { return memory_; }
  /// Call before a backward changes the bucket. Keeps a mean that no step has used.
  void keep();

  /// The tensor that receives this rank's part of an exchange.
  const at::Tensor& begin_exchange();
  /// Call after the exchange, for each slice whose gradient some rank has changed. Adds the mean of
  /// the exchange to the earlier mean times the factor.
  void add(std::size_t slice, double factor = 1);
  /// Call after the last add().
  void end_exchange() { incoming_.reset(); }

  /// This rank's part of a slice's gradient: flat; undefined if no rank has computed the gradient.
  const at::Tensor& gradient(std::size_t slice) const { return gradients_[slice]; }
  /// Whether a gradient contains the mean of an exchange.
  bool has_mean() const { return has_mean_; }
  /// Makes all gradients undefined. Call it after a step has used them.
  void release();
  /// The same, and zero() finds no gradients until the next add().
  void discard();
  /// Makes the gradients zero that have become defined since the last discard().
  void zero();

 private:
  bool has_gradients() const;
  at::Tensor part_of(const at::Tensor& flat, std::size_t slice) const;

  const Bucket& bucket_;
  PartMemory memory_;
  ShardRange own_;
  at::Tensor mean_;                    ///< memory of the gradients
  at::Tensor incoming_;                ///< of an exchange that must not overwrite them
  std::vector<at::Tensor> gradients_;  ///< per slice
  std::vector<bool> has_been_added_;   ///< per slice, since the last discard()
  bool has_mean_ = false;
};

/// Memory of buckets that have some during their exchange only (PartMemory::own). The buckets of
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
