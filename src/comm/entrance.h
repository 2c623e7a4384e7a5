#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/progress_thread.h"
#include "comm/waiting.h"

namespace lockstep::inline v0_2::detail {

/// Serialises access to a rank's groups: one thread of the program at a time holds a Use. While
/// none does, the rank's progress thread, if it was started, advances operations.
class Entrance {
 public:
  /// Whether this is a child that the rank's process forked off.
  bool in_child() const noexcept { return usage_.in_child(); }
  /// Locks the mutex that a Use holds, for callers that are not operations.
  std::unique_lock<std::mutex> hold() { return std::unique_lock(mutex_); }

  /// Starts a thread that advances pending operations with this function between calls. Called
  /// once. A derived class stops the thread before it destroys anything that the function uses.
  /// Throws: CommError when the process may start no more threads.
  void start_thread(std::function<ProgressThread::Outcome()> advance) {
    thread_.emplace(mutex_, [this, advance = std::move(advance)] {
      if (!std::exchange(entered_, false)) return advance();
      return ProgressThread::Outcome{.news = false, .under_way = true, .attended = true};
    });
  }
  bool has_thread() const { return thread_.has_value(); }
  /// To be called in a Use that leaves an operation under way.
  void wake_thread() {
    if (thread_) thread_->wake();
  }
  void stop_thread() noexcept {
    if (thread_) thread_->stop();
  }

  class Use {
   public:
    /// Throws: InvalidArgument naming backend and rank when another thread of the program is
    /// inside, and in a child that was forked off.
    Use(Entrance& entrance, std::string_view backend, int rank)
        : entrance_(entrance), one_(entrance.usage_, backend, rank), lock_(entrance.mutex_) {
      entrance.entered_ = true;
    }
    ~Use() {
      // With its last operation a group may end, which takes the mutex.
      const auto complete = std::exchange(entrance_.complete_, {});
      lock_.unlock();
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    Entrance& entrance_;
    OneThread one_;
    std::unique_lock<std::mutex> lock_;
  };

 protected:
  Entrance() = default;
  ~Entrance() = default;
  Entrance(const Entrance&) = delete;
  Entrance& operator=(const Entrance&) = delete;

  /// Operations to be let go of by the Use.
  std::vector<std::shared_ptr<void>>& complete() { return complete_; }

 private:
  std::mutex mutex_;
  Usage usage_;
  std::vector<std::shared_ptr<void>> complete_;
  bool entered_ = false;  ///< by a Use, since the thread looked last
  std::optional<ProgressThread> thread_;
};

}  // namespace lockstep::detail
