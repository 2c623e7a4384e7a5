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

#include "adapter/failure_store.h"
#include "comm/waiting.h"
#include "core/deadline.h"
#include "core/failure.h"

namespace lockstep::inline v0_2::adapter {

/// One rank's state of a c10d::Backend, which all its groups share: messages in flight, and the
/// failure of the world. Note [How a group over a c10d::Backend runs] is in c10d_transport.cpp.
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

  /// Publishes failures of the world in the store, and polls it for those of other ranks. Called
  /// once.
  void watch(c10::intrusive_ptr<c10d::Store> store, std::int64_t world);

  /// A message in flight.
  using Posted = std::list<c10::intrusive_ptr<c10d::Work>>::iterator;
  enum class Direction { receive, send };
  /// Begins a message, which is aborted when the world fails. Throws: what the backend throws.
  Posted post(Direction direction, std::byte* data, std::size_t bytes, int rank, int tag);
  /// Releases a message that has ended.
  void release(Posted posted);
  /// Aborts and releases a message. The backend does not use its memory afterwards.
  void abort(Posted posted) noexcept;

  /// Calls change under the lock, and wakes threads in await().
  template <class Change>
  void change(const Change& change) {
    {
      const std::lock_guard lock(mutex_);
      change();
    }
    changed_.notify_all();
  }
  /// Calls fn under the lock.
  template <class Fn>
  auto look(const Fn& fn) {
    const std::lock_guard lock(mutex_);
    return fn();
  }
  /// Blocks until ended() returns true, for at most limit. Returns whether it did.
  template <class Ended>
  bool await(std::chrono::milliseconds limit, const Ended& ended) {
    std::unique_lock lock(mutex_);
    for (detail::Deadline deadline(limit); !deadline.passed();) {
      if (changed_.wait_for(lock, deadline.nap(), ended)) return true;
    }
    return ended();
  }
  template <class Ended>
  void await(const Ended& ended) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, ended);
  }

  /// Whether this process is a forked child of the rank's process, which has none of its threads.
  bool in_child() const noexcept { return usage_.in_child(); }

  /// Records the first failure of the world, and aborts all messages in flight. Any thread.
  void fail(const detail::Failure& failure) noexcept;
  /// Polls the store for a failure immediately.
  void poll_failure() {
    if (failure_store_) failure_store_->poll_now();
  }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  /// Throws the failure of the world, with the operation in which this rank gets it.
  [[noreturn]] void throw_failure(std::string_view where);
  /// Call when this rank's program failed the world: its later errors say "failed earlier".
  void set_failure_raised() noexcept { raised_failure_.set_raised(); }

  /// Guard of every call that uses this rank's groups: one thread at a time.
  class Use : detail::OneThread {
   public:
    explicit Use(RankContext& context)
        : OneThread(context.usage_, context.name(), context.rank()) {}
  };

 private:
  void record(const detail::Failure& failure) noexcept;
  void abort(c10d::Work& work) noexcept;

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::string name_;
  std::chrono::milliseconds timeout_;
  int last_group_ = 0;
  detail::Usage usage_;
  std::mutex backend_mutex_;  ///< serialises calls of the backend
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<c10::intrusive_ptr<c10d::Work>> in_flight_;
  std::atomic<bool> failed_{false};
  std::optional<detail::Failure> failure_;
  detail::RaisedFailure raised_failure_;
  std::optional<FailureStore> failure_store_;
};

}  // namespace lockstep::adapter
