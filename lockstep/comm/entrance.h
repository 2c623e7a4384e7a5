#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/comm/progress_thread.h"
#include "lockstep/comm/waiting.h"

namespace lockstep::detail {

/// Who touches a rank's groups: one thread of the program at a time, which says so by a Use; while
/// there is none, a thread of its own that makes progress, where it was started.
class Entrance {
 public:
  /// What a Use holds, for those who are no operation.
  std::unique_lock<std::mutex> hold() { return std::unique_lock(mutex_); }

  /// From here on a thread advances what is under way while nobody waits, by this function. Called
  /// once; who derives stops the thread before what the function uses is gone. Throws: CommError
  /// when the process may start no more threads.
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
    /// inside.
    Use(Entrance& entrance, std::string_view backend, int rank)
        : entrance_(entrance), one_(entrance.used_, backend, rank), lock_(entrance.mutex_) {
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
  std::atomic<bool> used_{false};
  std::vector<std::shared_ptr<void>> complete_;
  bool entered_ = false;  ///< by a Use, since the thread looked last
  std::optional<ProgressThread> thread_;
};

}  // namespace lockstep::detail
