#pragma once

#include <chrono>
#include <coroutine>
#include <cstdint>
#include <set>
#include <utility>

#include "comm/waiting.h"
#include "lockstep/work.h"

namespace lockstep::inline v0_2::detail {

/// A part of an operation, as a coroutine. It awaits operations of other groups, conditions and
/// turns, and never blocks: whoever advances the operation advances the task.
///
///     Task pass_on() {
///       for (std::size_t i = 0; i < pieces_; ++i) {
///         co_await until([&] { return arrived_[i] != 0; });
///         send(piece(i));
///       }
///     }
///
/// `co_await` of a Work returns its source().
class [[nodiscard]] Task {
 public:
  class promise_type;

  Task() = default;  ///< finished
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  ~Task() {
    if (handle_) handle_.destroy();
  }

  /// Runs the coroutine until it awaits what is not ready. Returns whether it ran.
  /// Throws: the exception of the coroutine, which is finished then, or of an awaited operation.
  bool advance();
  /// Whether the coroutine has ended, or there is none.
  bool finished() const { return !handle_ || handle_.done(); }

  /// The operation that the coroutine awaits; null if it awaits something else.
  Work* work() const;
  /// Number of operations that it has awaited, with the present one.
  int works() const;
  /// Time in which this rank has reduced and copied for the operations that are complete.
  std::chrono::nanoseconds worked() const;

 private:
  explicit Task(std::coroutine_handle<promise_type> handle) : handle_(handle) {}

  std::coroutine_handle<promise_type> handle_;
};

/// The order in which tasks do something: that in which they have made a Turn.
class Turns {
 private:
  friend class Turn;
  std::uint64_t last_ = 0;
  std::set<std::uint64_t> waiting_;
};

/// A task's place in the order of Turns. `co_await` of it suspends the task until all earlier ones
/// have come or are destroyed. The next one comes when the task is suspended again.
class Turn final : public Condition {
 public:
  explicit Turn(Turns& turns) : turns_(turns), number_(++turns.last_) {
    turns_.waiting_.insert(number_);
  }
  ~Turn() { resume(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  bool is_ready() override { return *turns_.waiting_.begin() == number_; }
  void resume() noexcept { turns_.waiting_.erase(number_); }

 private:
  Turns& turns_;
  std::uint64_t number_;
};

class Task::promise_type {
 public:
  Task get_return_object() {
    return Task(std::coroutine_handle<promise_type>::from_promise(*this));
  }
  std::suspend_always initial_suspend() noexcept { return {}; }
  std::suspend_always final_suspend() noexcept { return {}; }
  void return_void() noexcept {}
  void unhandled_exception() { throw; }

  /// The condition that an operation is complete.
  class AwaitedWork final : public Condition {
   public:
    AwaitedWork(promise_type& promise, Work&& work) : promise_(promise), work_(std::move(work)) {
      ++promise_.works_;
      promise_.work_ = &work_;
    }
    AwaitedWork(const AwaitedWork&) = delete;
    AwaitedWork& operator=(const AwaitedWork&) = delete;
    ~AwaitedWork() { promise_.work_ = nullptr; }

    bool is_ready() override { return work_.ready(); }
    int resume() {
      promise_.worked_ += work_.worked();
      work_.wait();
      return work_.source();
    }

   private:
    promise_type& promise_;
    Work work_;
  };

  template <class Awaited>
  struct Awaiter {
    Awaited awaited;
    bool await_ready() { return awaited.is_ready(); }
    void await_suspend(std::coroutine_handle<promise_type> handle) noexcept {
      handle.promise().awaited_ = &awaited;
    }
    auto await_resume() { return awaited.resume(); }
  };
  template <class Ready>
  Awaiter<Until<Ready>> await_transform(Until<Ready>&& until) {
    return {std::move(until)};
  }
  Awaiter<Turn&> await_transform(Turn& turn) { return {turn}; }
  Awaiter<AwaitedWork> await_transform(Work&& work) { return {{*this, std::move(work)}}; }

 private:
  friend class Task;

  Condition* awaited_ = nullptr;
  Work* work_ = nullptr;
  int works_ = 0;
  std::chrono::nanoseconds worked_{};
};

inline bool Task::advance() {
  bool ran = false;
  while (!finished()) {
    auto& promise = handle_.promise();
    if (promise.awaited_ != nullptr && !promise.awaited_->is_ready()) return ran;
    promise.awaited_ = nullptr;
    ran = true;
    handle_.resume();
  }
  return ran;
}

inline Work* Task::work() const { return handle_ ? handle_.promise().work_ : nullptr; }

inline int Task::works() const { return handle_ ? handle_.promise().works_ : 0; }

inline std::chrono::nanoseconds Task::worked() const {
  return handle_ ? handle_.promise().worked_ : std::chrono::nanoseconds();
}

}  // namespace lockstep::detail
