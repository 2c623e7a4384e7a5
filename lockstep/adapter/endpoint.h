#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <list>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/adapter/failure_board.h"
#include "lockstep/comm/control/failure.h"
#include "lockstep/comm/waiting.h"

namespace lockstep::adapter {

/// Bytes that go to another rank, or come from it.
struct Message {
  enum class Way { receive, send };
  Way way;
  int rank;
  int tag;
  std::byte* data;
  std::size_t bytes;
};

/// This rank's end of a backend, shared by all its groups: what is under way in it, and what ended
/// the world. Note [How a group over a c10d::Backend runs] is in flight.cpp.
class Endpoint {
 public:
  Endpoint(c10::intrusive_ptr<c10d::Backend> backend, std::chrono::milliseconds timeout);
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  int rank() const { return backend_->getRank(); }
  int size() const { return backend_->getSize(); }
  /// "c10d/gloo".
  std::string_view name() const { return name_; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  /// The highest number of a group that this rank is or was in.
  int last_group() const { return last_group_; }
  void set_last_group(int number) { last_group_ = number; }

  /// Tells the others through the store what ends the world, and hears it from them. Called once.
  void watch(c10::intrusive_ptr<c10d::Store> store, std::int64_t world);

  /// Sends and receives all messages, those of no bytes left out; blocks until all have gone and
  /// come, each for no longer than longest. awaited becomes the rank whose message is not here.
  /// Throws: what the backend throws; std::runtime_error when the world has ended.
  void exchange(std::span<const Message> messages, std::chrono::milliseconds longest,
                std::optional<int>& awaited);

  /// Changes what await() may wait for.
  template <class Change>
  void change(const Change& change) {
    {
      const std::lock_guard lock(mutex_);
      change();
    }
    changed_.notify_all();
  }
  /// What fn sees, unchanged meanwhile.
  template <class Fn>
  auto look(const Fn& fn) {
    const std::lock_guard lock(mutex_);
    return fn();
  }
  /// Blocks until over() holds, for at most limit; whether it does.
  template <class Over>
  bool await(std::chrono::milliseconds limit, const Over& over) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, over);
  }
  template <class Over>
  void await(const Over& over) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, over);
  }

  /// Ends the world unless it has ended: what is under way is aborted. Any thread.
  void fail(const control::Failure& failure) noexcept;
  /// Hears from the store at once what it may know.
  void ask() {
    if (board_) board_->ask();
  }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  /// Throws what ended the world, as it was met here.
  [[noreturn]] void throw_failure(std::string_view where);

  /// Entered by every call that touches this rank's groups.
  class Use : detail::OneThread {
   public:
    explicit Use(Endpoint& endpoint)
        : OneThread(endpoint.used_, endpoint.name(), endpoint.rank()) {}
  };

 private:
  using Works = std::list<c10::intrusive_ptr<c10d::Work>>;
  class UnderWay;

  c10::intrusive_ptr<c10d::Work> post(const Message& message);
  void record(const control::Failure& failure) noexcept;
  void abort(c10d::Work& work) noexcept;

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::string name_;
  std::chrono::milliseconds timeout_;
  int last_group_ = 0;
  std::atomic<bool> used_{false};
  std::mutex posting_;  ///< a backend is asked for one thing at a time
  std::mutex mutex_;
  std::condition_variable changed_;
  Works under_way_;
  std::atomic<bool> failed_{false};
  std::optional<control::Failure> failure_;
  std::optional<FailureBoard> board_;
};

}  // namespace lockstep::adapter
