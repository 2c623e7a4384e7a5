#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "lockstep/data_parallel_options.h"
#include "lockstep/exchange.h"
#include "lockstep/group.h"
#include "lockstep/strategy.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep::inline v0_2::detail {
class ReplicatedModel;
class SharedUpdate;
enum class UpdateGradients : bool;
}  // namespace lockstep::detail

namespace lockstep::inline v0_2 {

/// Interface of an optimizer whose update ranks can share. It updates each element independently of
/// all others, from the state of that element.
class ElementwiseOptimizer {
 public:
  /// Some elements of one parameter. Shapes: flat, of the same number of elements.
  struct Elements {
    at::Tensor values;
    at::Tensor gradient;
    at::Tensor memory;      ///< undefined where nothing is remembered
    bool is_first = false;  ///< the parameter was never updated: memory is to be filled
  };

  virtual ~ElementwiseOptimizer() = default;

  /// Whether the parameter is one of the optimizer's.
  virtual bool has(const at::Tensor& parameter) const = 0;

  /// The state of one of its parameters: a tensor of the parameter's sizes and strides, undefined
  /// before the first update. Null while the optimizer keeps no state.
  virtual at::Tensor* memory_of(const at::Tensor& parameter) = 0;

  /// Updates some elements of one of its parameters, in place, by the options of this moment.
  virtual void update(const at::Tensor& parameter, const Elements& elements) = 0;
};

/// Every rank's parameters and buffers of the module = root's. Autograd does not notice.
/// Ranks: all of the group.
/// Throws: InvalidArgument, on every rank, when the modules' names, shapes, strides or dtypes
/// differ, naming the first difference and the ranks; the group stays usable.
void broadcast_parameters(const torch::nn::Module& module, const Group& group, int root = 0);

/// Data-parallel training around an optimizer, whatever the model's forward looks like, by any
/// strategy:
///
///     lockstep::DistributedOptimizer optimizer(sgd, *model, world);
///     optimizer.backward_and_update(cross_entropy(model->forward(data), target));
///
/// or in steps: zero_grad(), loss.backward(), whatever clips or logs gradients, step(). Gradients
/// are final when backward() returns, as with DistributedDataParallel. Strategies that exchange
/// parameters do so in step().
/// Ranks: all must construct it, and take as many steps. Each step exchanges once, so without
/// no_sync() there is one backward a step. Optimizer and model must outlive it.
class DistributedOptimizer {
 public:
  /// Checks that all ranks hold the same parameters and buffers, and gives them rank 0's.
  /// Throws: InvalidArgument, on every rank, when they do not, or when the model cannot be wrapped.
  /// InvalidArgument also when the optimizer has a parameter that the model has not, or when
  /// optimizer, strategy or group do not support options.share_memory. The group stays usable.
  DistributedOptimizer(torch::optim::Optimizer& optimizer, torch::nn::Module& model,
                       const Group& group, const DataParallelOptions& options = {});
  DistributedOptimizer(torch::optim::Optimizer& optimizer, torch::nn::Module& model,
                       const Group& group, Strategy strategy);
  ~DistributedOptimizer();
  DistributedOptimizer(const DistributedOptimizer&) = delete;
  DistributedOptimizer& operator=(const DistributedOptimizer&) = delete;

  /// loss.backward(), step(), zero_grad(). Adds to what was accumulated under no_sync().
  /// Ranks: all. An undefined loss, or one that reaches no parameter, takes part without a say.
  void backward_and_update(const at::Tensor& loss);

  /// The optimizer's step. Before it, gradients that some rank has not averaged yet are averaged:
  /// accumulated under no_sync(), set by hand, or of another rank's backward. After it, parameters
  /// are exchanged where the strategy asks for it. Ranks: all.
  /// Throws: InvalidArgument, on every rank, when a rank has made another number of steps, for
  /// strategies that average gradients. The same
  /// when a strategy with error feedback would have to average a mean again, because a rank has
  /// changed it in place. ReplicaError as a backward of DistributedDataParallel; CommError and
  /// TimeoutError as a collective does.
  void step();

  /// The optimizer's zero_grad.
  void zero_grad(bool set_to_none = true);

  /// Every rank's parameters = their mean over ranks, under strategies that let them differ between
  /// steps; nothing under others. Before evaluation, and before a checkpoint.
  /// Ranks: all.
  void synchronize();

  /// Whether replicas may differ until synchronize(), because the strategy does not average every
  /// gradient. Each rank then keeps an optimizer state of its own.
  bool replicas_may_differ() const;

  /// As DistributedDataParallel's.
  NoSync no_sync() const;
  /// Throws: InvalidArgument under a strategy that exchanges parameters, which have no weights.
  void weight(double samples);
  State state() const;
  void load_state(const State& state);

 private:
  void update(detail::UpdateGradients gradients);

  torch::optim::Optimizer& optimizer_;
  std::unique_ptr<detail::ReplicatedModel> model_;
  std::unique_ptr<detail::SharedUpdate> shared_;  ///< of options.share_memory
};

}  // namespace lockstep
