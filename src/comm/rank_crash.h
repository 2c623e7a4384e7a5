#pragma once

#include <unistd.h>

#include "core/crash_handler.h"
#include "core/signal_safe_text.h"

namespace lockstep::inline v0_2::detail {

/// The failure of a world whose rank crashes: "rank 2 (pid 4711) crashed: SIGSEGV".
inline SignalSafeText<1024> crash_text(int rank, const Crash& crash) noexcept {
  SignalSafeText<1024> text;
  text << "rank " << rank << " (pid " << ::getpid() << ") crashed: " << crash.signal;
  if (!crash.cause.empty()) text << ": " << crash.cause;
  return text;
}

}  // namespace lockstep::detail
