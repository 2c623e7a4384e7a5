#pragma once

#include <coroutine>
#include <exception>
#include <utility>

#include "lockstep/comm/work.h"

namespace lockstep {

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

}  // namespace lockstep
