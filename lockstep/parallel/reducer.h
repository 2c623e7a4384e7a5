#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/group.h"
#include "lockstep/parallel/buffer_sync.h"
#include "lockstep/parallel/lanes.h"
#include "lockstep/parallel/mean_probe.h"
#include "lockstep/parallel/model_state.h"
#include "lockstep/parallel/options.h"
#include "lockstep/parallel/proof.h"
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
  /// Parameters without requires_grad are left alone.
  /// Throws: InvalidArgument when one cannot be reduced; nothing was exchanged then.
  static std::shared_ptr<Reducer> create(const ModelState& model, const Group& group,
                                         const DataParallelOptions& options);
  /// Takes the hooks off, and gives gradients their own memory.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Throws: InvalidArgument when create() would, for a reason that lies in the parameters.
  static void check(const ModelState& model, const Group& group);

  /// A backward through this tensor takes part even if it reaches no parameter.
  void watch(const at::Tensor& output);

  /// While paused, gradients only accumulate.
  void pause() { ++paused_; }
  void resume() { --paused_; }

  /// This rank's weight at the next exchange. Ranks: all, or none.
  void weigh(double samples) { weights_.set(samples); }

  /// Exchanges gradients outside a backward, where none did since the last call of
  /// exchange_parameters(): on this rank no backward reached a parameter. Ranks: all.
  void exchange_gradients();
  bool has_exchanged() const { return exchanged_; }

  /// For an update that ranks share, instead of an exchange: this rank's factor, and, once all can
  /// read its gradients, which parameters' some rank has changed: a byte each, lane after lane.
  /// Then every rank's can be read, and no rank computes any more. Ranks: all.
  double take_factor() { return weights_.take_factor(); }
  std::span<const std::uint8_t> end_without_exchange();
  std::span<const Lane> lanes() const { return lanes_.all(); }

  /// Before the optimizer's step.
  void before_update();
  /// Exchanges the parameters of those buckets whose turn it is. After the optimizer's step.
  /// Ranks: all.
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

  /// One parameter, in the order of the buckets' slices.
  struct Member {
    std::size_t lane;
    const Bucket::Slice* slice;
    decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor>())) accumulator = {};
    std::uintptr_t hook = 0;
    bool ready = false;     ///< its hook has run in this backward
    bool changed = false;   ///< its gradient has changed since it was last averaged
    bool in_graph = false;  ///< and what it was made of could have been differentiated again
    at::Tensor kept = {};   ///< the gradient as it was, should it turn out that no rank changed it
    MeanProbe mean = {};    ///< of the last mean, where an exchange keeps what it did not send
  };

  Reducer(const ModelState& model, const Group& group, const DataParallelOptions& options);
  void add_hooks();

  void on_gradient(std::size_t member, const at::Tensor& incoming);
  std::shared_ptr<Backward> new_backward(int task);
  std::shared_ptr<Backward> join_backward();
  bool accumulates_here() const;
  void move_into_bucket(Member& member);
  void prepare(std::size_t member);
  void begin_next(Backward& backward);
  void finish(Backward& backward);
  /// Returns what a strategy refused, the same on every rank.
  std::exception_ptr exchange(Backward& backward);
  void settle();
  void refuse_added_to_mean(Member& member, const at::Tensor& incoming);
  std::span<std::uint8_t, Proof::bytes> proof_bytes();

  Group group_;
  Lanes lanes_;
  std::vector<Member> members_;             ///< lane after lane
  std::vector<std::size_t> first_members_;  ///< of each lane; the last is their number
  at::Tensor verdict_;  ///< a byte a member, "somebody changed its gradient"; then the proof's
  std::uint8_t* flags_ = nullptr;
  Weights weights_;
  Proof proof_;
  BufferSync buffers_;
  bool parameters_may_differ_;
  std::weak_ptr<Backward> backward_;
  std::int64_t step_ = 0;
  bool exchanged_ = false;
  int paused_ = 0;
};

}  // namespace lockstep::detail
