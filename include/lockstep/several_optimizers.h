#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint.h"
#include "lockstep/exchange.h"
#include "lockstep/model_view.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep::inline v0_2 {

/// A further optimizer of a Checkpoint, for programs that train one model with several:
///
///     lockstep::StatefulOptimizer critic(critic_adam, *model);
///     lockstep::Checkpoint checkpoint{.model = *model, .optimizer = adam,
///                                     .extra = {{"critic", critic}}};
///
/// Optimizer and model must outlive this object.
/// Ranks: the optimizer's state must be the same on all.
class StatefulOptimizer {
 public:
  StatefulOptimizer(torch::optim::Optimizer& optimizer, ModelView model)
      : optimizer_(optimizer), model_(std::move(model)) {}

  /// Options, and the state of each parameter under the parameter's name.
  /// Throws: CheckpointError if a parameter is not in the model or DataParallelOptions::shard
  /// divides the state, InvalidArgument if the optimizer has a parameter twice.
  State state() const;
  /// Throws: CheckpointError if the state is not one of this optimizer; nothing is changed then.
  void load_state(const State& state);

 private:
  torch::optim::Optimizer& optimizer_;
  ModelView model_;
};

/// Several wrappers as one, for Checkpoint::strategy:
///
///     lockstep::SeveralStateful both({generator, critic});
///     lockstep::Checkpoint checkpoint{.model = *model, .optimizer = adam, .strategy = both};
///
/// The objects must outlive this one.
class SeveralStateful {
 public:
  /// Throws: InvalidArgument for a DistributedOptimizer whose replicas may differ, because a
  /// checkpoint keeps a state for each rank of one optimizer only.
  explicit SeveralStateful(std::vector<Stateful> objects);

  State state() const;
  /// Throws the error of the object that refuses its state. Nothing is changed then.
  void load_state(const State& state) const;
  /// As Stateful::ranks(): the highest of the objects.
  int ranks() const;

 private:
  std::vector<Stateful> objects_;
};

}  // namespace lockstep
