#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "adapter/failure_board.h"
#include "comm/control/failure.h"
#include "comm/rank_failure.h"
#include "comm/waiting.h"
#include "core/deadline.h"

namespace lockstep::inline v0_2::adapter {

/// This rank's end of a backend, shared by all its groups: what is under way in it, and what ended
/// the world. Note [How a group over a c10d::Backend runs] is in c10d_transport.cpp.
class RankContext {
 public:
  RankContext(c10::intrusive_ptr<c10d::Backend> backend, std::chrono::milliseconds timeout);
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;

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

  /// A message that the backend sends or receives.
  using Posted = std::list<c10::intrusive_ptr<c10d::Work>>::iterator;
  enum class Way { receive, send };
  /// Begins a message, which is aborted when the world ends. Throws: what the backend throws.
  Posted post(Way way, std::byte* data, std::size_t bytes, int rank, int tag);
  /// Forgets a message that has ended.
  void release(Posted posted);
  /// Ends a message that is not needed any more. The backend no longer uses its memory.
  void abort(Posted posted) noexcept;

  /// Changes what await() may wait for.
  template <class Change>
  void change(const Change& change) {
    {
      const std::lock_guard lock(mutex_);
      change();
    }
    changed_.notify_all();
  }
  /// Calls fn under the lock, so that the state it reads does not change meanwhile.
  template <class Fn>
  auto look(const Fn& fn) {
    const std::lock_guard lock(mutex_);
    return fn();
  }
  /// Blocks until over() holds, for at most limit; whether it does.
  template <class Over>
  bool await(std::chrono::milliseconds limit, const Over& over) {
    std::unique_lock lock(mutex_);
    for (detail::Deadline deadline(limit); !deadline.passed();) {
      if (changed_.wait_for(lock, deadline.nap(), over)) return true;
    }
    return over();
  }
  template <class Over>
  void await(const Over& over) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, over);
  }

  /// Whether this is a child that the rank's process forked off. The threads are the parent's.
  bool in_child() const noexcept { return usage_.in_child(); }

  /// Ends the world unless it has ended: what is under way is aborted. Any thread.
  void fail(const control::Failure& failure) noexcept;
  /// Hears from the store at once what it may know.
  void ask() {
    if (board_) board_->ask();
  }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  /// Throws what ended the world, as it was met here.
  [[noreturn]] void throw_failure(std::string_view where);
  /// The program of this rank has ended the world: its next error is a later one.
  void set_failure_met() noexcept { raised_failure_.set_raised(); }

  /// Entered by every call that touches this rank's groups.
  class Use : detail::OneThread {
   public:
    explicit Use(RankContext& context)
        : OneThread(context.usage_, context.name(), context.rank()) {}
  };

 private:
  void record(const control::Failure& failure) noexcept;
  void abort(c10d::Work& work) noexcept;

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::string name_;
  std::chrono::milliseconds timeout_;
  int last_group_ = 0;
  detail::Usage usage_;
  std::mutex posting_;  ///< a backend is asked for one thing at a time
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<c10::intrusive_ptr<c10d::Work>> under_way_;
  std::atomic<bool> failed_{false};
  std::optional<control::Failure> failure_;
  detail::RaisedFailure raised_failure_;
  std::optional<FailureBoard> board_;
};

}  // namespace lockstep::adapter
