#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/data_parallel_options.h"
#include "lockstep/exchange.h"
#include "lockstep/group.h"
#include "lockstep/model_view.h"
#include "lockstep/strategy.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep::inline v0_2::detail {
class ReplicatedModel;
class Update;
}  // namespace lockstep::detail

namespace lockstep::inline v0_2 {

template <class M>
class DistributedDataParallel;
class GradScaler;

/// Interface of an optimizer that ranks can share (DataParallelOptions::share_memory): each rank
/// updates a part of the elements. The update of an element must depend only on that element's
/// value, gradient and state. SGD, Adam, AdamW, RMSprop and Adagrad of torch::optim need no such
/// interface.
class ElementwiseOptimizer {
 public:
  /// Some elements of one parameter.
  /// Shapes: flat, with the same number of elements.
  struct Elements {
    at::Tensor values;
    at::Tensor gradient;
    std::vector<at::Tensor> state;  ///< of these elements, in the order of state_of()
    bool is_first = false;          ///< the first update of the parameter: the state is zero
  };

  /// A tensor that the optimizer updates instead of some elements of a parameter.
  /// Shapes: part is flat, for the elements from begin on, in the order of the parameter's memory.
  struct Part {
    at::Tensor part;
    at::Tensor parameter;
    std::size_t begin = 0;
  };

  virtual ~ElementwiseOptimizer() = default;

  /// Throws: InvalidArgument if ranks cannot share the update (share_memory) with these options.
  virtual void check_shareable() const {}

  /// With DataParallelOptions::shard: the parts that later steps update, until the next call. An
  /// optimizer whose update depends on the place of an element needs them. All parameters are in
  /// param_groups() now.
  virtual void set_parts(const std::vector<Part>& /*parts*/) {}

  /// Whether the optimizer updates this parameter.
  virtual bool has(const at::Tensor& parameter) const = 0;

  /// The tensors of a parameter's state that have the parameter's sizes and strides: momentum,
  /// running means. They are undefined before the first update. Empty if the optimizer keeps none.
  virtual std::vector<at::Tensor*> state_of(const at::Tensor& parameter) = 0;

  /// Every rank calls it once before an update of the parameter, of which it may update no element.
  /// An optimizer that counts its steps does so here.
  virtual void begin_update(const at::Tensor& /*parameter*/) {}

  /// Updates some elements of a parameter in place, with the current options.
  virtual void update(const at::Tensor& parameter, const Elements& elements) = 0;
};

/// Data-parallel training with any strategy and any form of the model's forward:
///
///     lockstep::DistributedOptimizer optimizer(sgd, *model, world);
///     optimizer.backward_and_update(cross_entropy(model->forward(data), target));
///
/// or in separate calls: zero_grad(), loss.backward(), clipping or logging of gradients, step().
/// Gradients are final when backward() returns, as with DistributedDataParallel. Strategies that
/// exchange parameters do so in step(). The model may be of any kind that a ModelView refers to.
/// Optimizer and model must outlive this object. The optimizer's own step() lacks these exchanges
/// and the update by parts. If a program that needs them calls only that, its third backward throws
/// InvalidArgument, on every rank if it exchanges gradients. Where the optimizer's state does not
/// tell, the tenth writes a notice: with SGD on the CPU, and with Shard::gradients.
/// Ranks: all must construct it, and take the same number of steps. Each backward
/// exchanges gradients: run one per step, and further ones under no_sync().
class DistributedOptimizer {
 public:
  /// Checks that the models of all ranks have the same parameters and buffers, and copies rank 0's
  /// values to all ranks (initial_sync).
  /// Throws: InvalidArgument, on every rank, if the models differ or the model cannot be wrapped.
  /// InvalidArgument also if the optimizer has a parameter that the model lacks, or one parameter
  /// twice (use lockstep::parameters(model)), or if optimizer, strategy or group do not support
  /// options.share_memory or options.shard. The group stays usable. With these options, the
  /// parameter groups must be the same on all ranks. With share_memory or Shard::gradients, the
  /// optimizer must have all parameters that require a gradient.
  DistributedOptimizer(torch::optim::Optimizer& optimizer, const ModelView& model,
                       const Group& group, const DataParallelOptions& options = {});
  DistributedOptimizer(torch::optim::Optimizer& optimizer, const ModelView& model,
                       const Group& group, Strategy strategy);
  /// The steps of a model that a DistributedDataParallel wraps, with the group and the options of
  /// that. The program calls the wrapper for its forward:
  ///
  ///     lockstep::DistributedDataParallel ddp(model, world, {.shard = Shard::optimizer});
  ///     lockstep::DistributedOptimizer optimizer(adamw, ddp);
  ///     optimizer.backward_and_update(cross_entropy(ddp(data), target));
  ///
  /// The DistributedDataParallel may be destroyed before this object.
  /// Throws: as above, and InvalidArgument if another DistributedOptimizer steps this wrapper.
  template <class M>
  DistributedOptimizer(torch::optim::Optimizer& optimizer, const DistributedDataParallel<M>& model)
      : DistributedOptimizer(optimizer, checked(optimizer, model.replicas_)) {}
  /// With options.shard on several ranks, the optimizer has the state of this rank's parts then.
  /// Another DistributedOptimizer with the same options, and ranks in the same order, continues
  /// with it. The optimizer's own step fails: save a checkpoint before, which has the whole state.
  ~DistributedOptimizer();
  DistributedOptimizer(const DistributedOptimizer&) = delete;
  DistributedOptimizer& operator=(const DistributedOptimizer&) = delete;

  /// Calls loss.backward(), step() and zero_grad(). Includes gradients that were accumulated under
  /// no_sync(). A rank whose loss is undefined, or reaches no parameter, contributes zero
  /// gradients. With Shard::optimizer and the strategy fp32, fp16 or bf16 it sends less than the
  /// three calls: each rank gets the mean of the elements that it updates. On hosts with several
  /// ranks each, fp32 only.
  /// Ranks: all. With Shard::optimizer and share_memory, no rank that has a loss may call the three
  /// instead.
  /// Throws: InvalidArgument, on every rank, if some rank has a loss, none has one that requires a
  /// gradient, and none has gradients from before. Not with share_memory and strategies that do not
  /// average every gradient. Also as step().
  void backward_and_update(const at::Tensor& loss);

  /// The optimizer's step. Before it, gradients that are not averaged yet are averaged: those that
  /// a rank accumulated under no_sync(), set by hand, or got from a backward that other ranks did
  /// not run. After it, parameters are exchanged if the strategy requires it.
  /// Ranks: all.
  /// Throws: InvalidArgument, on every rank, if the strategy averages gradients and the ranks have
  /// taken different numbers of steps. InvalidArgument also if a rank has changed an averaged
  /// gradient in place, so that a strategy with error feedback would average it twice, if the
  /// optimizer has got a parameter that was not wrapped, if a buffer has got other sizes, or, where
  /// ranks update parts, if the optimizer's options differ between ranks.
  /// ReplicaError as a backward of DistributedDataParallel. CommError and TimeoutError as a
  /// collective does.
  void step();

  /// The step of an optimizer that evaluates the loss several times, such as LBFGS. The closure
  /// clears the gradients, runs the backward of the loss of this rank's batch, and returns the
  /// loss:
  ///
  ///     optimizer.step([&] {
  ///       optimizer.zero_grad();
  ///       auto loss = mse_loss(model->forward(data), target);
  ///       loss.backward();
  ///       return loss;
  ///     });
  ///
  /// The optimizer gets the means of gradients and losses over ranks, so it takes the same
  /// decisions on every rank. If the closure calls weight() before the backward, these are weighted
  /// means. An undefined loss counts as 0. Returns what the optimizer returns: the mean loss of the
  /// first evaluation, as one Double on the CPU. Ranks: all. Throws: InvalidArgument, on every
  /// rank, if the strategy does not average every gradient, with share_memory, and for a loss that
  /// is not one number. Also as step().
  at::Tensor step(const std::function<at::Tensor()>& closure);

  /// Averages gradients that are not averaged yet, as step() does, without a step. Call it before
  /// you read or clip gradients that were accumulated under no_sync(), or that some ranks got from
  /// a backward that others did not run. GradScaler calls it.
  /// Ranks: all.
  /// Throws: as step().
  void average_gradients();

  /// Calls the optimizer's zero_grad(). With shard, also discards this rank's parts of the averaged
  /// gradients, which neither the optimizer's nor the model's zero_grad() does; step() discards
  /// them as well. With Shard::gradients and set_to_none = false, the parts become zero instead,
  /// also those that a step has discarded: the next step updates the parameter as with a gradient
  /// of zero.
  void zero_grad(bool set_to_none = true);

  /// Every rank's parameters = their mean over ranks, if the strategy lets them differ between
  /// steps; else does nothing. Call it before evaluation and before a checkpoint.
  /// Ranks: all.
  void synchronize();

  /// Whether parameters may differ between ranks until synchronize(), because the strategy does not
  /// average every gradient. Each rank then has an optimizer state of its own.
  bool replicas_may_differ() const;

  /// As DistributedDataParallel::no_sync().
  NoSync no_sync() const;
  /// As DistributedDataParallel::weight(), for the next exchange of this step. step() throws
  /// InvalidArgument, on every rank, for one that was set after its gradients were averaged.
  void weight(double samples);
  State state() const;
  void load_state(const State& state);

  /// The optimizer that was passed to the constructor.
  torch::optim::Optimizer& optimizer() const { return optimizer_; }
  const Group& group() const;

 private:
  friend class GradScaler;
  friend double clip_grad_norm(DistributedOptimizer& optimizer, double max_norm, double norm_type);

  DistributedOptimizer(torch::optim::Optimizer& optimizer,
                       std::shared_ptr<detail::ReplicatedModel> model);
  /// Whether a DistributedOptimizer has this optimizer. Any thread.
  static bool has(const torch::optim::Optimizer& optimizer);
  /// The wrapped model, which these steps can update.
  static std::shared_ptr<detail::ReplicatedModel> checked(
      const torch::optim::Optimizer& optimizer, std::shared_ptr<detail::ReplicatedModel> wrapped);

  /// Throws: InvalidArgument if the model's parameters or buffers are not as they were wrapped, or
  /// the optimizer has other parameters.
  void check_unchanged();
  void update();

  torch::optim::Optimizer& optimizer_;
  std::shared_ptr<detail::ReplicatedModel> model_;
  std::unique_ptr<detail::Update> update_;
  std::vector<const void*> parameters_;  ///< the optimizer's, of which the wrapper has each
};

/// Scales the averaged gradients of the optimizer's parameters by max_norm ÷ (norm + 1e-6) if that
/// is less than 1, as torch::nn::utils::clip_grad_norm_() does, which leaves sparse gradients as
/// they are. norm is that of all gradients as one vector, also where each rank has a part of them
/// (Shard::gradients). Averages local gradients first. Call it between backward() and step().
///
///     loss.backward();
///     lockstep::clip_grad_norm(optimizer, 1.0);
///     optimizer.step();
///
/// norm_type: p of the norm, at least 1; infinity for the largest magnitude.
/// Returns the norm before clipping, the same value on every rank.
/// Ranks: all.
/// Throws: InvalidArgument for a max_norm that is negative or NaN, a norm_type below 1, and a
/// strategy that does not average every gradient. Also as average_gradients().
double clip_grad_norm(DistributedOptimizer& optimizer, double max_norm, double norm_type = 2);

}  // namespace lockstep
