#pragma once

#include <coroutine>
#include <cstddef>
#include <exception>
#include <utility>

#include "lockstep/work.h"

namespace lockstep::inline v0_2 {

/// One exchange of one bucket: a coroutine that awaits each of its collectives.
///
///     ExchangeTask exchange(std::int64_t step, Bucket& bucket, const Group& group) override {
///       encode(bucket.values());
///       co_await group.all_reduce(codes_);
///       decode(bucket.values());
///     }
///
/// The first advance() runs the coroutine to its first collective. Each later advance() runs it
/// from a complete collective to the next one. The coroutine must not block.
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

  /// Whether the coroutine has ended, or there is none.
  bool finished() const { return !handle_ || handle_.done(); }

  /// Runs the coroutine to its next collective and returns that Work; at the end of the coroutine,
  /// returns a Work that is not pending. The Work that the previous call returned must be complete.
  /// Throws: the exception of the coroutine, which is finished then.
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

namespace detail {

/// Slots between two collectives of one exchange.
inline constexpr std::size_t lag = 2;
/// Exchanges of one collective that may be incomplete at the same time. Before the one at position
/// p begins, slot p - 1 waits for the one at p - exchanges_at_once.
inline constexpr std::size_t exchanges_at_once = lag + 1;

/// Whether the exchange at a position issues its next collective in a slot. Slot s comes after the
/// begin of the exchange at position s. The order of collectives thus depends only on positions,
/// never on readiness, and two exchanges are in progress while a rank waits for one.
constexpr bool advances_in_slot(std::size_t slot, std::size_t position) {
  return slot > position && (slot - position) % lag == 0;
}

}  // namespace detail
}  // namespace lockstep
