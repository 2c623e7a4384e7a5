#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/operation.h"
#include "lockstep/data_parallel_options.h"
#include "lockstep/exchange.h"
#include "lockstep/group.h"
#include "parallel/agree.h"
#include "parallel/buckets/bucket_reducers.h"
#include "parallel/reducer/buffer_sync.h"
#include "parallel/reducer/consistency_check.h"
#include "parallel/reducer/gradient_set.h"
#include "parallel/reducer/group_wrappers.h"
#include "parallel/reducer/model_state.h"
#include "parallel/reducer/parameter_hooks.h"
#include "parallel/reducer/sparse_gradients.h"

namespace lockstep::inline v0_2::detail {

/// The requirements of the parameters' update.
struct UpdateNeeds {
  /// The option that divides or shares the update; null if none does. It moves the parameters to
  /// other memory, and requires a DistributedOptimizer.
  const char* option = nullptr;
  std::optional<PartMemory> parts = {};  ///< as BucketReducers takes it
};

/// An option of an optimizer's parameter group.
struct UpdateOption {
  std::size_t group;
  const char* name;
  double value;
};

/// Exchanges gradients while a backward runs. Hooks on the parameters move each gradient into its
/// bucket. All ranks exchange buckets in the same order. A callback at the end of the backward
/// waits for the exchanges, so that gradients are final when backward() returns. Strategies that
/// exchange parameters do so after the optimizer's step.
class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  /// Ignores parameters without requires_grad. owner is the source of the collectives.
  /// Ranks: all of the group.
  /// check_trainable() must accept the model.
  Reducer(const ModelState& model, const Group& group, const DataParallelOptions& options,
          const UpdateNeeds& needs, const Source& owner);
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;
  ~Reducer();

  /// Makes every backward through this tensor exchange gradients, even if it reaches no parameter.
  void watch(const at::Tensor& output, const std::shared_ptr<ForwardGraph>& graph);

  BufferSync& buffers() { return *buffers_; }

  /// Hooks gradient accumulators that LibTorch has made since the last call. Call before a forward
  /// and before the optimizer's step.
  void hook_new_accumulators();

  /// Throws: InvalidArgument while a DistributedOptimizer is attached.
  void check_unattached() const;
  /// From now on, steps of a DistributedOptimizer end exchanges. Without a DistributedDataParallel,
  /// whose program may have other optimizers, backwards may add to the means of all parameters that
  /// it does not update. Ranks: all, between the same two backwards.
  void attach_optimizer(const IsOptimized& is_optimized);
  /// From then on, ranks compare the options before each update. For updates that ranks divide:
  /// each rank would update its part with its own options, and all would keep equal parameters.
  void compare_options(std::function<std::vector<UpdateOption>()> options) {
    options_ = std::move(options);
  }
  /// From then on, until a step or end_own_step_check(), backwards look for own steps of the
  /// optimizer, if these leave out what the strategy or an option requires. marks: of OwnStepCheck.
  void watch_own_steps(std::function<OwnStepCheck::Marks()> marks, Shard shard);
  void end_own_step_check() { own_steps_.end(); }
  void detach_optimizer();
  /// Throws: InvalidArgument if an option requires a DistributedOptimizer and none is attached.
  void check_optimizer() const;

  /// Sets a check that throws if the model has changed since it was wrapped. Each backward calls
  /// it, because the program may have called the model itself. The step of a DistributedOptimizer
  /// calls it, too, so with one no backward does.
  void set_model_check(std::function<void()> check) { check_model_ = std::move(check); }

  /// The number of the wrapper among those of its group.
  std::uint16_t number() const { return owner_.number; }
  /// Whether a backward runs that has reached the wrapper.
  bool in_backward() const;
  /// Completes the exchange of that backward. If there is none, takes part in that of other ranks
  /// without gradients. Ranks: all.
  void finish_backward();

  /// The product of the exchanges of this step: the whole mean without a Request.
  Product product() const { return reducers_.product(); }
  /// While it exists, exchanges give each rank this product. With Product::none there are no
  /// exchanges. Ranks: all; those in step() learn it from the others.
  class [[nodiscard]] Request {
   public:
    Request(Reducer& reducer, Product product)
        : reducer_(reducer), before_(reducer.reducers_.product()) {
      reducer_.reducers_.set_product(product);
    }
    /// After an exception, no step uses the parts.
    ~Request() {
      reducer_.reducers_.set_product(before_);
      if (std::uncaught_exceptions() > exceptions_) reducer_.reducers_.discard_parts();
    }
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;

   private:
    Reducer& reducer_;
    Product before_;
    int exceptions_ = std::uncaught_exceptions();
  };

  /// While paused, gradients accumulate and are not exchanged. Calls nest.
  void pause() { ++paused_; }
  void resume() { --paused_; }

  /// Whether every strategy takes weights.
  bool take_weights() const { return reducers_.take_weights(); }
  /// Sets this rank's weight at the next exchange. Ranks: all, or none.
  void set_weight(double samples);
  /// Call before the update of a step. Throws: InvalidArgument, on every rank, for weights that
  /// were set after its exchange.
  void refuse_late_weights() { weights_.refuse_late(); }

  /// Averages the gradients of this step that are local on some rank: accumulated under no_sync(),
  /// assigned by the program, or of a rank that ran no backward, as one without a loss. Joins the
  /// exchanges of backwards that other ranks run meanwhile. Call before the optimizer's step.
  /// Ranks: all. A rank that joined a backward's exchange receives the other ranks' later changes
  /// of the mean, such as clipping. Throws: InvalidArgument, on every rank, when a strategy with
  /// error feedback would have to average a mean that a rank has changed in place. The same when
  /// other ranks dropped a mean whose exchange this rank had joined, and accumulated gradients
  /// after that, or when the ranks' options differ (compare_options()).
  /// loss: of backward_and_update(). InvalidArgument also for StepIntent::lacks_graph(), if every
  /// gradient is averaged.
  void average_local_gradients(LossGraph loss = LossGraph::no_loss);

  /// Call after all ranks have changed their gradients alike, once and in place. The averaged ones
  /// stay averaged.
  void keep_averages() { gradients_.keep_averages(); }

  /// The mean of the ranks' losses, with the weights of the last exchange. An undefined loss counts
  /// as 0. Ranks: all.
  /// Shapes: loss has one element. The result is a Double on the CPU.
  /// Throws: InvalidArgument, on every rank, for a loss that has another number of elements.
  at::Tensor mean_of_losses(const at::Tensor& loss);

  /// For SharedUpdate, instead of an exchange. Call end_local_backward() after the backward of a
  /// loss under no_sync(). begin_without_exchange() returns this rank's weight factor. Call
  /// end_without_exchange() once other ranks can read this rank's gradients. It returns one byte
  /// per parameter, bucket after bucket: whether some rank has changed its gradient. After it, all
  /// ranks have ended their backward and their gradients can be read. Ranks: all.
  /// Throws: InvalidArgument, on every rank, for a gradient that is not finite (check_finite), and
  /// when the ranks' options differ.
  void end_local_backward(const at::Tensor& loss) {
    find_replaced([&] { return ParameterHooks::graph_of(loss); });
  }
  double begin_without_exchange();
  std::span<const std::uint8_t> end_without_exchange();
  std::span<BucketReducer> bucket_reducers() { return reducers_.all(); }
  /// The source of collectives that gather the parameters of a bucket.
  Source source_of_parameters(std::size_t bucket) const {
    return reducers_.source(bucket, SyncTarget::parameters);
  }

  /// Call before the optimizer's step.
  void before_update();
  /// Exchanges the parameters of the buckets that the strategy selects for this step, and ends the
  /// step. Call after the optimizer's step. Ranks: all.
  void exchange_parameters();

  /// Whether parameters and optimizer state may differ between ranks.
  bool parameters_may_differ() const { return !reducers_.exchanges_every_gradient(); }

  /// Every rank's parameters = their mean over ranks, if they may differ. Ranks: all.
  void average_parameters();

  /// State of the exchanges, by parameter names, and the count of exchanges.
  State state() const;
  /// Throws: InvalidArgument when it is not a state of this model and strategy.
  void load(const State& state);

 private:
  class Backward;

  Source source(Source::Content content) const;
  void update_membership();

  void on_gradient(std::size_t parameter, const at::Tensor& incoming);
  double weight_factor(bool is_first);
  std::shared_ptr<Backward> new_backward(int task, bool is_first = true);
  std::shared_ptr<Backward> current_backward();
  bool may_begin(const Backward& backward) const;
  /// Whether this step exchanges gradients. Sparse gradients are exchanged in every step.
  bool exchanges_gradients() const {
    return sparse_.size() > 0 || reducers_.exchanges(SyncTarget::gradients, step_);
  }
  void begin_agreement(Backward& backward);
  void begin_next(Backward& backward);
  void finish(Backward& backward);
  void finish_on_stream(Backward& backward);
  std::exception_ptr exchange(Backward& backward);
  bool is_paused() const { return paused_ > 0 || reducers_.product() == Product::none; }
  void find_replaced(const std::function<ParameterHooks::Graph()>& graph) {
    hooks_.find_replaced([&](std::size_t parameter) { return gradients_.is_local(parameter); },
                         graph);
  }
  Work begin_flags(const Compared<std::uint64_t>& check = Compared<std::uint64_t>::none());
  std::exception_ptr end_flags();
  void exchange_flags();
  void begin_buffers();
  StepIntent end_agreement();
  StepIntent agree(bool has_followed, LossGraph loss);
  std::uint64_t digest_of_options() const;
  void check_options(bool are_equal) const;
  bool prepare_step(const StepIntent& all, bool has_followed);
  InvalidArgument dropped_mean_error() const;

  Group group_;
  Group host_;  ///< for flags and agreements
  Source owner_;
  const char* needs_optimizer_;  ///< the option that requires a DistributedOptimizer; else null
  bool has_optimizer_ = false;   ///< a DistributedOptimizer is attached
  std::shared_ptr<GroupWrappers> wrappers_;
  BucketReducers reducers_;
  SparseGradients sparse_;
  GradientSet gradients_;
  StepAgreement agreement_;
  Weights weights_;
  ConsistencyCheck check_;
  PositionCheck positions_;
  OwnStepCheck own_steps_;
  std::shared_ptr<BufferSync> buffers_;
  ParameterHooks hooks_;
  std::shared_ptr<Backward> backward_;
  std::function<void()> check_model_;
  std::function<std::vector<UpdateOption>()> options_;  ///< null if ranks do not compare them
  std::int64_t step_ = 0;       ///< exchanges so far; steps of a DistributedOptimizer
  bool some_in_step_ = false;   ///< some rank took part in the last exchange from step()
  bool has_exchanged_ = false;  ///< a backward has ended with an exchange
  bool has_nested_ = false;     ///< a backward has run within another one
  int paused_ = 0;
  bool after_nested_ = false;  ///< the last exchange was of a backward within the same one
  double last_factor_ = 1;     ///< weight factor of the last exchange
};

}  // namespace lockstep::detail
