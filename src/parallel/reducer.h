#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/operation.h"
#include "lockstep/data_parallel_options.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/exchange.h"
#include "lockstep/group.h"
#include "parallel/bucket_reducers.h"
#include "parallel/buffer_sync.h"
#include "parallel/consistency_check.h"
#include "parallel/gradient_set.h"
#include "parallel/group_wrappers.h"
#include "parallel/parameter_hooks.h"
#include "parallel/replicated_model.h"
#include "parallel/step_agreement.h"
#include "parallel/weights.h"

namespace lockstep::inline v0_2::detail {

/// Exchanges gradients while a backward runs. Hooks on the parameters move each gradient into its
/// bucket. Buckets are exchanged in an order that all ranks share. A callback at the end of the
/// backward waits for them, so that gradients are final when backward() returns. Strategies that
/// exchange parameters do so after the optimizer's step.
class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  /// Parameters without requires_grad are left alone. owner says whose collectives these are.
  /// Ranks: all of the group.
  /// Throws: InvalidArgument when a parameter cannot be reduced; nothing was exchanged then.
  static std::shared_ptr<Reducer> create(const ModelState& model, const Group& group,
                                         const DataParallelOptions& options, const Source& owner);
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;
  ~Reducer();

  /// Throws: InvalidArgument when create() would, for a reason that lies in the parameters.
  static void check(const ModelState& model, const Group& group);

  /// A backward through this tensor takes part even if it reaches no parameter.
  void watch(const at::Tensor& output);

  /// Follows the gradient accumulators that LibTorch has made since. Before a forward, and before
  /// the optimizer's step.
  void follow_accumulators();

  /// Parameters that no optimizer steps, and whose gradients may therefore add up.
  void let_accumulate(const std::function<bool(const at::Tensor&)>& is_stepped) {
    gradients_.let_accumulate(is_stepped);
  }

  /// While paused, gradients only accumulate.
  void pause() { ++paused_; }
  void resume() { --paused_; }

  /// This rank's weight at the next exchange. Ranks: all, or none.
  void set_weight(double samples);

  /// Averages the gradients that this step exchanges and some rank has not averaged yet. They were
  /// accumulated under no_sync(), set by hand, or belong to a rank that ran no backward. Joins the
  /// backwards that other ranks run meanwhile. Before the optimizer's step. Ranks: all.
  /// A rank that joins a backward takes over the others' later changes of its mean, such as
  /// clipping.
  /// Throws: InvalidArgument, on every rank, when a strategy with error feedback would have to
  /// average a mean that a rank has changed in place. InvalidArgument also when other ranks have
  /// added to gradients after they dropped a mean that this rank has joined.
  void average_local_gradients();

  /// For an update that ranks share, instead of an exchange. take_factor() returns this rank's
  /// factor. Call end_without_exchange() once all ranks can read this rank's gradients. It returns
  /// a byte for each parameter, bucket after bucket: whether some rank has changed its gradient.
  /// Then every rank's gradients can be read, and no rank computes any more. Ranks: all.
  double take_factor() { return weights_.take_factor(); }
  std::span<const std::uint8_t> end_without_exchange();
  std::span<const BucketReducer> bucket_reducers() const { return reducers_.all(); }

  /// Before the optimizer's step.
  void before_update();
  /// Exchanges the parameters of those buckets whose turn it is, and ends the step. After the
  /// optimizer's step. Ranks: all.
  void exchange_parameters();

  /// Whether parameters, and what the optimizer remembers of them, may differ between ranks.
  bool parameters_may_differ() const { return parameters_may_differ_; }

  /// Every rank's parameters = their mean over ranks, if they may differ. Ranks: all.
  void average_parameters();

  /// State of the exchanges, by parameter names, and the count of exchanges.
  State state() const;
  /// Throws: InvalidArgument when it is not a state of this model and strategy.
  void load(const State& state);

 private:
  class Backward;

  Reducer(const ModelState& model, const Group& group, const DataParallelOptions& options,
          const Source& owner);
  Source source(Source::Content content) const;
  bool steps_by_optimizer() const { return owner_.owner == Source::Owner::distributed_optimizer; }
  bool is_new_leaf(const at::Tensor& leaf);

  void on_gradient(std::size_t parameter, const at::Tensor& incoming);
  void take_gradient(std::size_t parameter, const at::Tensor& incoming);
  std::shared_ptr<Backward> new_backward(int task);
  std::shared_ptr<Backward> join_backward();
  void begin_next(Backward& backward);
  void finish(Backward& backward);
  std::exception_ptr exchange(Backward& backward);
  Work begin_flags();
  void begin_buffers();
  StepPlan agree(bool has_joined);
  bool prepare_step(const StepPlan& plan, bool has_joined);
  std::exception_ptr dropped_mean() const;

  Group group_;
  Source owner_;
  std::shared_ptr<GroupWrappers> wrappers_;
  BucketReducers reducers_;
  GradientSet gradients_;
  StepAgreement agreement_;
  Weights weights_;
  ConsistencyCheck check_;
  BufferSync buffers_;
  bool parameters_may_differ_;
  std::optional<ParameterHooks> hooks_;
  std::weak_ptr<Backward> backward_;
  std::vector<c10::weak_intrusive_ptr<at::TensorImpl>> watched_leaves_;
  std::int64_t step_ = 0;        ///< exchanges so far; of a DistributedOptimizer, its steps
  bool others_in_step_ = false;  ///< some rank has joined the last exchange in step()
  int paused_ = 0;
};

}  // namespace lockstep::detail
