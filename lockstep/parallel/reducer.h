#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/group.h"
#include "lockstep/parallel/bundle.h"
#include "lockstep/parallel/model_state.h"
#include "lockstep/parallel/options.h"
#include "lockstep/sync/bucket.h"
#include "lockstep/sync/exchange.h"

namespace lockstep::detail {

/// Exchanges gradients while a backward runs. Hooks on the parameters move each gradient into its
/// bucket; buckets leave in index order; a callback at the end of the backward waits for them.
/// Gradients are final when backward() returns. ARCHITECTURE.md tells the whole story.
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

 private:
  class Hook;
  class Backward;

  /// One bucket and how it is exchanged.
  struct Lane {
    Bucket bucket;
    std::unique_ptr<Exchange> exchange;
    std::size_t first_member;
    std::size_t missing = 0;  ///< members whose hook has not run in this backward
  };

  /// One parameter, in the order of the buckets' slices.
  struct Member {
    std::size_t lane;
    const Bucket::Slice* slice;
    decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor>())) accumulator = {};
    std::uintptr_t hook = 0;
    bool ready = false;    ///< its hook has run in this backward
    bool changed = false;  ///< its gradient has changed since it was last averaged
    at::Tensor kept = {};  ///< the gradient as it was, should it turn out that no rank changed it
  };

  Reducer(const ModelState& model, const Group& group, const DataParallelOptions& options);
  void add_hooks();

  void on_gradient(std::size_t member, const at::Tensor& incoming);
  std::shared_ptr<Backward> join_backward();
  bool accumulates_here() const;
  void move_into_bucket(Member& member);
  void prepare(std::size_t member);
  void begin_next(Backward& backward);
  void finish(Backward& backward);
  void settle();

  Group group_;
  std::vector<Lane> lanes_;
  std::vector<Member> members_;
  at::Tensor changed_anywhere_;  ///< a byte a member
  std::uint8_t* flags_ = nullptr;
  std::unique_ptr<Bundle> buffers_;
  std::weak_ptr<Backward> backward_;
  std::int64_t step_ = 0;
  int paused_ = 0;
};

}  // namespace lockstep::detail
