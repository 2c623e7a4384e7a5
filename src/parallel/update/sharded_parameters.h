#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/exchange.h"
#include "lockstep/group.h"
#include "parallel/buckets/bucket_memory.h"
#include "parallel/buckets/bucket_reducers.h"
#include "parallel/reducer/reducer.h"
#include "parallel/update/own_step.h"
#include "parallel/update/update.h"

namespace lockstep::inline v0_2::detail {

/// Tensors over flat memory, one per slice: in the slice's place, with its parameter's sizes and
/// strides.
std::vector<at::Tensor> lay_out(const Bucket& bucket, const at::Tensor& flat);
/// The values of a tensor in the strides of another one: the tensor itself if it has them.
at::Tensor laid_out(const at::Tensor& tensor, const at::Tensor& like);
/// Replaces a tensor by a copy in memory of its own if it uses the memory of values. When memory is
/// short, it stays there and keeps that memory alive.
void leave(const at::Tensor& tensor, const at::Tensor& values) noexcept;

/// The parameters of one bucket, in the layout of its gradients. One call of the optimizer's step
/// updates them.
struct ShardedBucket {
  const BucketReducer* reducer;
  ShardRange own;                    ///< elements that this rank updates
  at::Tensor flat;                   ///< the parts of all ranks
  std::vector<at::Tensor> values{};  ///< per slice, the parameter's memory in flat
  /// Per slice, the elements that this rank updates: flat, maybe empty.
  std::vector<at::Tensor> parts{};
  std::vector<std::size_t> optimized{};  ///< slices that the optimizer has
  ParameterLists optimized_parts{};      ///< their parts

  std::span<const Bucket::Slice> slices() const { return reducer->bucket.slices(); }
  /// This rank's part of the averaged gradients; null if each exchange gives every rank the whole.
  GradientShard* shard() const { return reducer->shard.get(); }
};

/// The update of DataParallelOptions::shard. A model's parameters are in one flat tensor for each
/// bucket, so that a rank updates a range of it and the ranks gather the ranges in place. During
/// step(), the optimizer's parameters are the parts that this rank updates, so it has the state of
/// these parts only; checkpoints have it by the whole parameters. The ranks gather each bucket
/// while the optimizer updates the next one.
class ShardedParameters final : public Update {
 public:
  /// Moves the parameters, and keeps the parts of the state that the optimizer has. As
  /// Update::create().
  /// Throws: also CheckpointError, on every rank, if the state is not of whole parameters.
  ShardedParameters(torch::optim::Optimizer& optimizer, Reducer& reducer, const Group& group);
  /// Copies the parameters into memory of their own. The optimizer has the state of the parts under
  /// the whole parameters then. Another DistributedOptimizer with the same options takes it; any
  /// other use of it is an error.
  ~ShardedParameters() override;

  /// Those of this optimizer; null if it is not sharded. Any thread.
  static ShardedParameters* of(const torch::optim::Optimizer& optimizer);

  Product product() const override { return Product::part; }
  /// Throws: InvalidArgument when the optimizer's parameters are not those of the constructor.
  void step() override;
  at::Tensor step(const std::function<at::Tensor()>& evaluate) override {
    auto loss = evaluate();
    step();
    return loss;
  }

  /// Whether this rank has parts of all averaged gradients instead of the whole.
  bool divides_gradients() const {
    const auto* const shard = buckets_.empty() ? nullptr : buckets_.front().shard();
    return shard != nullptr && shard->memory() == PartMemory::own;
  }
  /// The parts of averaged gradients, which LibTorch's zero_grad() does not reach, but those in
  /// place of which the program has set .grad(). release_gradients() makes all undefined,
  /// zero_grad() undefined or zero.
  std::vector<at::Tensor> gradients() const;
  /// Call it after a step, or instead of one.
  void release_gradients() const;
  void zero_grad(bool set_to_none) const;

  /// Replaces the states of whole parameters by copies of this rank's parts.
  /// Throws: CheckpointError if one is of other elements. Nothing has changed then.
  void cut(ParamStates& states) const;

 private:
  friend class WholeState;
  friend const ParamStates& whole_state(const torch::optim::Optimizer& optimizer);

  void set_parts(const std::vector<ElementwiseOptimizer::Part>& parts) const;
  void check_cuttable(const ParamStates& states) const;
  void leave_buckets();
  void check_groups() const;
  void move_back() const;
  ParamStates gather_state() const;

  Group group_;
  std::vector<ShardedBucket> buckets_;
  ParameterLists original_;           ///< the optimizer's parameters at construction
  ParameterLists unsharded_;          ///< those in no bucket, which every rank updates
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
