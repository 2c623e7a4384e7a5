#pragma once

#include <torch/optim/optimizer.h>

#include <optional>
#include <type_traits>
#include <utility>

#include "lockstep/group.h"
#include "parallel/update/sharded_parameters.h"

namespace lockstep::inline v0_2::detail {

/// An optimizer's state, by parameter.
using ParamStates = std::remove_cvref_t<decltype(std::declval<torch::optim::Optimizer>().state())>;

/// The optimizer's state of sharded parameters. The optimizer has it by the parts that this rank
/// updates; checkpoints have it by the whole parameters.
class ShardedState {
 public:
  /// Keeps the parts of the state that the optimizer has. Parameters and optimizer must outlive it.
  ShardedState(const ShardedParameters& parameters, torch::optim::Optimizer& optimizer);
  /// The optimizer has the state of the parts under the whole parameters then. Another
  /// DistributedOptimizer with the same options takes it; any other use of it is an error.
  ~ShardedState();
  ShardedState(const ShardedState&) = delete;
  ShardedState& operator=(const ShardedState&) = delete;

  /// The state of this optimizer; null if it is not sharded. Any thread.
  static ShardedState* of(const torch::optim::Optimizer& optimizer);

  const ShardedParameters& parameters() const { return parameters_; }

  /// Replaces the states of whole parameters by copies of this rank's parts.
  void cut(ParamStates& states) const;

 private:
  friend class WholeState;
  friend const ParamStates& whole_state(const torch::optim::Optimizer& optimizer);

  ParamStates gather() const;

  const ShardedParameters& parameters_;
  torch::optim::Optimizer& optimizer_;
  std::optional<ParamStates> whole_;  ///< on rank 0, while a WholeState exists
};

/// While it exists, rank 0 has the whole state of an optimizer, and whole_state() returns it. No
/// effect for an optimizer that is null or not sharded.
class [[nodiscard]] WholeState {
 public:
  /// Ranks: all that shard the optimizer.
  /// Throws: CheckpointError, on every rank, if the group has another number of ranks.
  WholeState(const torch::optim::Optimizer* optimizer, const Group& group);
  /// For a single process. No effect if other ranks share the optimizer.
  explicit WholeState(const torch::optim::Optimizer* optimizer);
  ~WholeState();
  WholeState(const WholeState&) = delete;
  WholeState& operator=(const WholeState&) = delete;

 private:
  ShardedState* state_;
};

/// The state of an optimizer by whole parameters.
/// Throws: CheckpointError if the optimizer is sharded and this rank has no WholeState of it.
const ParamStates& whole_state(const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::detail
