#pragma once

#include <sys/types.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "core/signal_safe_text.h"

namespace lockstep::inline v0_2::detail {

/// A crash of this process by a signal.
struct Crash {
  int signal;
  std::string_view cause;     ///< of set_crash_cause()
  const ucontext_t* context;  ///< of the handler
  std::uint64_t at;           ///< ticks, before any listener is called
};

/// Sets the text of the error by which this process is about to call abort().
void set_crash_cause(std::string_view text) noexcept;

/// What a crash of this process ends. Note [What happens in a crash] is in crash_handler.cpp.
class CrashListener {
 public:
  CrashListener(const CrashListener&) = delete;
  CrashListener& operator=(const CrashListener&) = delete;

  /// Calls on_crash() of every listener. For the signal handler.
  static void call_all(const Crash& crash) noexcept;

 protected:
  /// Listeners of the first phase send the failure to others. Those of the second keep records,
  /// which takes longer.
  enum class Phase { notify, record };

  /// The first listener of a process installs the handler, unless LOCKSTEP_CRASH_HANDLER is 0.
  explicit CrashListener(Phase phase) noexcept;
  ~CrashListener() { stop_listening(); }
  /// A derived class calls it before it destroys what on_crash() uses. Waits for the end of the
  /// process if a crash is being handled.
  void stop_listening() noexcept;

 private:
  /// Must be async-signal-safe.
  virtual void on_crash(const Crash& crash) noexcept = 0;

  Phase phase_;
  pid_t thread_;           ///< that constructed it; of several listeners, its own comes first
  std::size_t place_ = 0;  ///< in the list of listeners
  bool is_listed_ = false;
};

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
  text << "rank " << crashed_rank(rank) << " (pid " << ::getpid() << ") crashed: SIG"
       << ::sigabbrev_np(crash.signal);
  if (!crash.cause.empty()) text << ": " << crash.cause;
  return text;
}

}  // namespace lockstep::detail
