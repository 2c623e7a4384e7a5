#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/source.h"
#include "lockstep/group.h"
#include "lockstep/parallel/buffer_sync.h"
#include "lockstep/parallel/gradient_record.h"
#include "lockstep/parallel/group_wrappers.h"
#include "lockstep/parallel/lanes.h"
#include "lockstep/parallel/mean_probe.h"
#include "lockstep/parallel/model_state.h"
#include "lockstep/parallel/options.h"
#include "lockstep/parallel/proof.h"
#include "lockstep/parallel/step_agreement.h"
#include "lockstep/parallel/weights.h"
#include "lockstep/sync/bucket.h"
#include "lockstep/sync/exchange.h"

namespace lockstep::detail {

/// Exchanges gradients while a backward runs. Hooks on the parameters move each gradient into its
/// bucket; buckets leave in an order that all ranks share; a callback at the end of the backward
/// waits for them. Gradients are final when backward() returns. Strategies that exchange parameters
/// do so after the optimizer's step. ARCHITECTURE.md tells the whole story.
class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  /// Parameters without requires_grad are left alone. owner says whose collectives these are.
  /// Ranks: all of the group.
  /// Throws: InvalidArgument when a parameter cannot be reduced; nothing was exchanged then.
  static std::shared_ptr<Reducer> create(const ModelState& model, const Group& group,
                                         const DataParallelOptions& options, const Source& owner);
  /// Takes the hooks off, and gives gradients their own memory.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Throws: InvalidArgument when create() would, for a reason that lies in the parameters.
  static void check(const ModelState& model, const Group& group);

  /// A backward through this tensor takes part even if it reaches no parameter.
  void watch(const at::Tensor& output);

  /// Hooks every parameter whose gradient accumulator LibTorch has replaced, as torch::load() and
  /// Module::to() make it do. Before a forward, and before the optimizer's step.
  void follow_accumulators();

  /// Parameters that no optimizer steps, and whose gradients may therefore add up.
  void let_accumulate(const std::function<bool(const at::Tensor&)>& is_stepped);

  /// While paused, gradients only accumulate.
  void pause() { ++paused_; }
  void resume() { --paused_; }

  /// This rank's weight at the next exchange. Ranks: all, or none.
  void weigh(double samples);

  /// Averages what is not averaged yet, on any rank, of the gradients that this step exchanges:
  /// accumulated under no_sync(), set by hand, of a rank that ran no backward. Joins the backwards
  /// that other ranks run meanwhile. Before the optimizer's step. Ranks: all.
  /// Throws: InvalidArgument, on every rank, when a strategy with error feedback would have to
  /// average a mean that a rank has changed in place.
  void average_local_gradients();

  /// For an update that ranks share, instead of an exchange: this rank's factor, and, once all can
  /// read its gradients, which parameters' some rank has changed: a byte each, lane after lane.
  /// Then every rank's can be read, and no rank computes any more. Ranks: all.
  double take_factor() { return weights_.take_factor(); }
  std::span<const std::uint8_t> end_without_exchange();
  std::span<const Lane> lanes() const { return lanes_.all(); }

  /// Before the optimizer's step.
  void before_update();
  /// Exchanges the parameters of those buckets whose turn it is, and ends the step. After the
  /// optimizer's step. Ranks: all.
  void exchange_parameters();

  /// Whether parameters, and what the optimizer remembers of them, may differ between ranks.
  bool replicas_may_differ() const { return parameters_may_differ_; }

  /// Every rank's parameters = their mean over ranks, if they may differ. Ranks: all.
  void average_parameters();

  /// What the exchanges remember, by parameter names, and the count of exchanges.
  State state() const;
  /// Throws: InvalidArgument when it is not a state of this model and strategy.
  void load(const State& state);

 private:
  class Hook;
  class Backward;

  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor>()));

  /// One parameter, in the order of the buckets' slices.
  struct Member {
    std::size_t lane;
    const Bucket::Slice* slice;
    Accumulator accumulator = {};  ///< the one that carries the hook
    std::uintptr_t hook = 0;
    GradientRecord record = {};
    bool ready = false;           ///< its hook has run in this backward
    bool in_graph = false;        ///< what its gradient was made of could be differentiated again
    bool may_accumulate = false;  ///< no optimizer steps it: means may be added to
    at::Tensor kept = {};  ///< the gradient as it was, should it turn out that no rank changed it
    MeanProbe mean = {};   ///< of the last mean, where an exchange keeps what it did not send
  };

  Reducer(const ModelState& model, const Group& group, const DataParallelOptions& options,
          const Source& owner);
  static void check_has_no_hook(const std::string& name, const at::Tensor& parameter);
  void add_hook(std::size_t member);
  bool is_new_leaf(const at::Tensor& leaf);
  Source source(Source::Content content) const;
  bool steps_by_optimizer() const { return owner_.owner == Source::Owner::distributed_optimizer; }

  void on_gradient(std::size_t member, const at::Tensor& incoming);
  std::shared_ptr<Backward> new_backward(int task);
  std::shared_ptr<Backward> join_backward();
  bool accumulates_here() const;
  void move_into_bucket(Member& member);
  void prepare(std::size_t member);
  void begin_next(Backward& backward);
  void announce(Backward& backward);
  void finish(Backward& backward);
  /// Returns what a strategy refused, the same on every rank.
  std::exception_ptr exchange(Backward& backward);
  Work begin_verdict();
  void begin_buffers();
  void settle();
  StepPlan agree();
  bool is_edited_mean(const Member& member) const;
  void take_edited(const StepPlan& plan);
  void refuse_added_to_mean(Member& member, const at::Tensor& incoming);
  std::span<std::uint8_t, Proof::bytes> proof_bytes();

  Group group_;
  Source owner_;
  std::shared_ptr<GroupWrappers> wrappers_;
  Lanes lanes_;
  std::vector<Member> members_;             ///< lane after lane
  std::vector<std::size_t> first_members_;  ///< of each lane; the last is their number
  at::Tensor verdict_;  ///< a byte a member, "somebody changed its gradient"; then the proof's
  std::uint8_t* flags_ = nullptr;
  StepAgreement agreement_;
  Weights weights_;
  Proof proof_;
  BufferSync buffers_;
  bool parameters_may_differ_;
  std::weak_ptr<Backward> backward_;
  std::vector<c10::weak_intrusive_ptr<at::TensorImpl>> watched_leaves_;
  std::int64_t step_ = 0;  ///< exchanges so far; of a DistributedOptimizer, its steps
  int paused_ = 0;
};

}  // namespace lockstep::detail
