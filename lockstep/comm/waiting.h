#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/comm/operation.h"

namespace lockstep::detail {

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

/// What an operation waits for: the ranks that it misses (rank_list()), or the bytes of the others.
std::string awaited(std::span<const int> ranks,
                    const std::function<std::string_view(int)>& note = {});

/// Entered by every call that touches one rank's groups: one thread at a time.
class OneThread {
 public:
  /// Throws: InvalidArgument naming backend and rank when another thread is inside.
  OneThread(std::atomic<bool>& used, std::string_view backend, int rank);
  ~OneThread() { used_.store(false, std::memory_order_release); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  std::atomic<bool>& used_;
};

}  // namespace lockstep::detail
