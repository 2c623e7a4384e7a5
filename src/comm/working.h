#pragma once

#include <chrono>

namespace lockstep::inline v0_2::detail {

/// Receives the times in which one thread reduced and copied, for operations of any group.
class WorkObserver {
 public:
  virtual void worked(std::chrono::steady_clock::time_point begin,
                      std::chrono::steady_clock::time_point end) noexcept = 0;

 protected:
  ~WorkObserver() = default;
};

/// The calling thread's observer; null reports to nobody.
inline constinit thread_local WorkObserver* this_threads_work_observer = nullptr;

/// The time that this thread has spent on reducing and copying, in all groups.
std::chrono::nanoseconds work_done();

/// Counts the time that it lives as work, of one operation and of this thread.
class Working {
 public:
  explicit Working(std::chrono::nanoseconds& of_operation);
  ~Working();
  Working(const Working&) = delete;
  Working& operator=(const Working&) = delete;

 private:
  std::chrono::nanoseconds& of_operation_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace lockstep::detail
