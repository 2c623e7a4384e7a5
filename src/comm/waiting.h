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
#include "core/fork_guard.h"
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

}  // namespace lockstep::detail
