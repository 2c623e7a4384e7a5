#pragma once

#include <unistd.h>

#include <atomic>

#include "core/signal_safe_text.h"
#include "core/system/crash_handler.h"

namespace lockstep::inline v0_2::detail {

/// The rank that crashed, of the ranks of this process: that of the first call, which the crash
/// handler makes for the rank of the crashed thread.
inline int crashed_rank(int rank) noexcept {
  static constinit std::atomic<int> first{-1};
  int none = -1;
  first.compare_exchange_strong(none, rank);
  return first.load();
}

/// The failure of a world whose rank crashes: "rank 2 (pid 4711) crashed: SIGSEGV".
inline SignalSafeText<1024> crash_text(int rank, const Crash& crash) noexcept {
  SignalSafeText<1024> text;
  text << "rank " << crashed_rank(rank) << " (pid " << ::getpid() << ") crashed: " << crash.signal;
  if (!crash.cause.empty()) text << ": " << crash.cause;
  return text;
}

}  // namespace lockstep::detail
