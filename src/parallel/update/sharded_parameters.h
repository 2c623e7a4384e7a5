#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/exchange.h"
#include "lockstep/group.h"
#include "lockstep/work.h"
#include "parallel/buckets/bucket_memory.h"
#include "parallel/buckets/bucket_reducers.h"
#include "parallel/update/own_step.h"

namespace lockstep::inline v0_2::detail {

/// Tensors over flat memory, one per slice: in the slice's place, with its parameter's sizes and
/// strides.
std::vector<at::Tensor> lay_out(const Bucket& bucket, const at::Tensor& flat);
/// The values of a tensor in the strides of another one: the tensor itself if it has them.
at::Tensor laid_out(const at::Tensor& tensor, const at::Tensor& like);
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
/// and the ranks gather the ranges in place. The optimizer has the state of the parts that this
/// rank updates; checkpoints have it by the whole parameters.
class ShardedParameters {
 public:
  /// Moves the parameters, and keeps the parts of the state that the optimizer has. Reducers and
  /// optimizer must outlive it.
  /// Throws: CommError when memory is short. CheckpointError if the state is not of whole
  /// parameters.
  ShardedParameters(std::span<const BucketReducer> reducers, const Group& group,
                    torch::optim::Optimizer& optimizer);
  /// Copies the parameters into memory of their own. The optimizer has the state of the parts under
  /// the whole parameters then. Another DistributedOptimizer with the same options takes it; any
  /// other use of it is an error.
  ~ShardedParameters();
  ShardedParameters(const ShardedParameters&) = delete;
  ShardedParameters& operator=(const ShardedParameters&) = delete;

  /// Those of this optimizer; null if it is not sharded. Any thread.
  static ShardedParameters* of(const torch::optim::Optimizer& optimizer);

  std::span<const ShardedBucket> buckets() const { return buckets_; }
  const Group& group() const { return group_; }

  /// Moves parameters back, with their current values, that the program has moved to other memory.
  void move_back();

  /// Whether this rank has parts of all averaged gradients instead of the whole.
  bool divides_gradients() const {
    const auto* const shard = buckets_.empty() ? nullptr : buckets_.front().shard();
    return shard != nullptr && shard->memory() == PartMemory::own;
  }
  /// The parts of averaged gradients, which no zero_grad() reaches. discard_gradients() makes them
  /// undefined.
  std::vector<at::Tensor> gradients() const;
  void discard_gradients() const;

  /// Begins to gather the ranges of one bucket from all ranks. Ranks: all of the group.
  Work gather(const ShardedBucket& bucket) const;

  /// Replaces the states of whole parameters by copies of this rank's parts.
  void cut(ParamStates& states) const;

 private:
  friend class WholeState;
  friend const ParamStates& whole_state(const torch::optim::Optimizer& optimizer);

  ParamStates gather_state() const;

  Group group_;
  torch::optim::Optimizer& optimizer_;
  std::vector<ShardedBucket> buckets_;
  std::optional<ParamStates> whole_;  ///< on rank 0, while a WholeState exists
};

/// While it exists, rank 0 has the whole state of an optimizer, and whole_state() returns it. No
/// effect for an optimizer that is null or not sharded.
class [[nodiscard]] WholeState {
 public:
  /// group: the ranks that save; null for a single process, which has no effect if other ranks
  /// share the optimizer. Ranks: all that shard the optimizer.
  /// Throws: CheckpointError, on every rank, if the group has another number of ranks.
  explicit WholeState(const torch::optim::Optimizer* optimizer, const Group* group = nullptr);
  ~WholeState();
  WholeState(const WholeState&) = delete;
  WholeState& operator=(const WholeState&) = delete;

 private:
  ShardedParameters* sharded_;
};

/// The state of an optimizer by whole parameters.
/// Throws: CheckpointError if the optimizer is sharded and this rank has no WholeState of it.
const ParamStates& whole_state(const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::detail
