#pragma once

#include <ATen/core/Tensor.h>

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/group.h"
#include "lockstep/work.h"

namespace lockstep::inline v0_2 {

/// Parameters whose gradients are exchanged together: one flat tensor in the group's memory, in
/// which each parameter has a slice.
class Bucket {
 public:
  /// One parameter's part of the flat tensor.
  struct Slice {
    std::string name;      ///< of the parameter, as the module names it
    at::Tensor parameter;  ///< the parameter itself
    std::size_t offset;    ///< first element within the flat tensor
    /// The slice in the parameter's sizes. Dense parameters keep their strides, others are row
    /// major. It shares the flat tensor's memory, but is no view for autograd.
    at::Tensor values = {};
  };

  /// A bucket of numel elements, all zero. Every slice must lie within it; values are made here.
  /// Throws: CommError when the machine has not that much memory.
  Bucket(std::size_t index, std::size_t numel, at::ScalarType dtype, std::vector<Slice> slices,
         const Group& group);

  /// Position of this bucket in the order in which buckets are exchanged.
  std::size_t index() const { return index_; }
  /// All slices and the zeros between them. Shapes: flat.
  const at::Tensor& values() const { return values_; }
  std::span<const Slice> slices() const { return slices_; }
  /// Whose memory it lies in, and whose ranks have one like it.
  const Group& group() const { return group_; }

 private:
  Group group_;
  std::size_t index_;
  at::Tensor values_;
  std::vector<Slice> slices_;
};

namespace detail {
/// A tensor of the parameter's sizes over flat's memory from an element on: its strides where it is
/// dense, else row major. Made from the storage: a view that autograd knows of could be neither a
/// parameter nor a gradient, as zero_grad() detaches in place.
at::Tensor alias(const at::Tensor& flat, std::size_t offset, const at::Tensor& parameter);
}  // namespace detail

/// One exchange of one bucket, under way: a coroutine that awaits each of its collectives.
///
///     ExchangeTask exchange(std::int64_t step, Bucket& bucket, const Group& group) override {
///       encode(bucket.values());
///       co_await group.all_reduce(codes_);
///       decode(bucket.values());
///     }
///
/// It runs up to its first collective when it is first advanced, and from each collective to the
/// next as soon as the one before is complete. It must not block.
class [[nodiscard]] ExchangeTask {
 public:
  class promise_type;

  ExchangeTask() = default;  ///< finished
  ExchangeTask(ExchangeTask&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  ExchangeTask& operator=(ExchangeTask&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ExchangeTask(const ExchangeTask&) = delete;
  ExchangeTask& operator=(const ExchangeTask&) = delete;
  ~ExchangeTask() {
    if (handle_) handle_.destroy();
  }

  /// Whether it has ended, or was never begun.
  bool finished() const { return !handle_ || handle_.done(); }

  /// Runs to the next collective, which it returns, or to the end: the Work is then not pending.
  /// The collective that it returned before must be complete.
  /// Throws: what the exchange throws; it is finished then.
  Work advance();

 private:
  explicit ExchangeTask(std::coroutine_handle<promise_type> handle) : handle_(handle) {}

  std::coroutine_handle<promise_type> handle_;
};

class ExchangeTask::promise_type {
 public:
  ExchangeTask get_return_object() {
    return ExchangeTask(std::coroutine_handle<promise_type>::from_promise(*this));
  }
  std::suspend_always initial_suspend() noexcept { return {}; }
  std::suspend_always final_suspend() noexcept { return {}; }
  void return_void() noexcept {}
  void unhandled_exception() noexcept { error_ = std::current_exception(); }

  /// Suspends the coroutine until the collective is complete.
  struct Collective {
    bool is_complete;
    bool await_ready() const noexcept { return is_complete; }
    void await_suspend(std::coroutine_handle<>) const noexcept {}
    void await_resume() const noexcept {}
  };
  Collective await_transform(Work&& work) {
    work_ = std::move(work);
    return {.is_complete = !work_.pending()};
  }

 private:
  friend class ExchangeTask;
  Work work_;
  std::exception_ptr error_;
};

inline Work ExchangeTask::advance() {
  if (finished()) return {};
  handle_.resume();
  auto& promise = handle_.promise();
  if (promise.error_ != nullptr) std::rethrow_exception(std::exchange(promise.error_, nullptr));
  return std::move(promise.work_);
}

/// The values of a bucket that an exchange synchronises at a step.
enum class SyncTarget { none, gradients, parameters };

/// State of an exchange between steps, under parameter names. A name that ends in ".residual" holds
/// the values that one rank has not sent yet. Resuming with another number of ranks keeps their sum
/// over the ranks. All other values (factors, counts, agreements) must be the same on every rank.
using State = std::map<std::string, at::Tensor>;

namespace detail {
/// Whether it is, by its name in a State, what one rank has not sent yet.
inline bool is_residual(std::string_view name) { return name.ends_with(".residual"); }
}  // namespace detail

/// How one bucket is exchanged, and what that remembers from step to step.
class Exchange {
 public:
  virtual ~Exchange() = default;

  /// The exchange of a step, as a coroutine. It begins when the bucket is ready. When it ends,
  /// bucket.values() holds the result on every rank. step is the number of exchanges before this
  /// one; for a DistributedOptimizer, of its steps. Bucket and group outlive the coroutine.
  /// Ranks: all of the group. All must issue the same collectives, or throw, alike.
  virtual ExchangeTask exchange(std::int64_t step, Bucket& bucket, const Group& group) = 0;

  /// The optimizer is about to update the parameters of this bucket of gradients, which will be
  /// exchanged right afterwards, as part of the same step. Not called for gradients.
  virtual void before_update(std::int64_t /*step*/, const Bucket&) {}

  /// Whether exchange() issues exactly one all_reduce. Where hosts hold several ranks, the group
  /// then divides the all_reduce among them. Any other exchange runs between hosts: its group has
  /// one rank of every host, and its bucket holds some of the parameters. Gradients come as the sum
  /// of the host's ranks times hosts ÷ ranks, parameters as the mean of the host's ranks:
  /// docs/design/gradients.md, "Strategies between hosts".
  virtual bool is_all_reduce() const { return false; }

  /// Asked before the first exchange and between steps. Residuals share memory with what it
  /// remembers, so that what is added to them is.
  virtual State state() const { return {}; }
  /// Takes over a state that state() of the same recipe returned, as from a checkpoint. Called
  /// before the first exchange or between steps. Names that the exchange does not know are ignored.
  virtual void load(const State&) {}
};

}  // namespace lockstep
