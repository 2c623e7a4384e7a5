#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "comm/operation.h"
#include "core/process.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::detail {

/// Tells the core that this thread spins.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

/// After so long without news a rank that polls sleeps between its looks, for so long each.
inline constexpr auto awake = std::chrono::milliseconds(20);
inline constexpr auto nap = std::chrono::microseconds(50);

/// Whether so many ranks of a host have cores of their own, and may spin: else they would take them
/// from one another. Of no known number of cores the machine's are meant.
bool fit_cores(int ranks, int threads_per_rank, int cores);

/// How long the operation may be waited for: its own timeout, else the world's, of which sums do
/// not overflow.
std::chrono::milliseconds wait_limit(const Operation& operation, std::chrono::milliseconds world);

/// A message's words for the ranks that an operation misses (rank_list()); for none, the bytes of
/// the others.
std::string awaited(std::span<const int> ranks,
                    const std::function<std::string_view(int)>& note = {});

/// The lowest rank; -1 if there is none.
int lowest(std::span<const int> ranks);

/// The right to use the groups of one rank: one thread at a time has it, in the process that
/// joined.
class Usage {
 public:
  bool in_child() const noexcept { return process_.in_child(); }
  /// Throws: InvalidArgument naming backend and rank in a child that was forked off.
  void expect_own_process(std::string_view backend, int rank) const;

 private:
  friend class OneThread;
  ForkGuard process_;
  pid_t pid_ = ::getpid();
  std::atomic<bool> used_{false};
};

/// Entered by every call that touches one rank's groups.
class OneThread {
 public:
  /// Throws: InvalidArgument naming backend and rank when another thread is inside, and in a child
  /// that was forked off.
  OneThread(Usage& usage, std::string_view backend, int rank);
  ~OneThread() { usage_.used_.store(false, std::memory_order_release); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  Usage& usage_;
};

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
