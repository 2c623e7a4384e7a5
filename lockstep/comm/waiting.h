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

/// How long the operation may be waited for: its own timeout, else the world's, of which sums do
/// not overflow.
std::chrono::milliseconds wait_limit(const Operation& operation, std::chrono::milliseconds world);

/// "rank 1", "ranks 0, 2", at most sixteen of them, each with what note says of it.
std::string list_ranks(std::span<const int> ranks,
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
