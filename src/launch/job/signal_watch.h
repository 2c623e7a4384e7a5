#pragma once

#include <signal.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <array>
#include <optional>

#include "launch/system.h"

namespace lockstep::inline v0_2::launch {

/// The signals that the launcher forwards.
inline constexpr std::array forwarded{SIGUSR1, SIGUSR2};
/// Whether the launcher forwards the signal.
constexpr bool is_forwarded(int signal) { return std::ranges::count(forwarded, signal) > 0; }

/// The signals that the launcher handles, read as events from a descriptor. A signal that the
/// launcher inherited as ignored (nohup) stays ignored. SIGCHLD does not, because the kernel would
/// then reap ranks before their exit status is read. Inherited blocked signals are unblocked.
/// SIGALRM only interrupts system calls.
///
/// SIGUSR1 and SIGUSR2 are for the ranks, and never end the launcher. They are read even if they
/// were inherited as ignored, because a rank may install a handler.
class SignalWatch {
 public:
  /// forward: next() returns SIGUSR1 and SIGUSR2; otherwise it discards them.
  explicit SignalWatch(bool forward = true);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  int fd() const { return events_.get(); }
  std::optional<signalfd_siginfo> next();
  /// A pending signal that asks the launcher to end, such as that of Ctrl-C.
  std::optional<int> pending_end_signal() const noexcept;

  /// For a forked child: unblocks all signals, and restores the dispositions that the launcher
  /// inherited, except an ignored SIGCHLD.
  void restore() const noexcept;

 private:
  bool forward_;
  Descriptor events_;
  struct sigaction pipe_before_ {};
  struct sigaction alarm_before_ {};
  std::array<struct sigaction, forwarded.size()> forwarded_before_{};
};

}  // namespace lockstep::launch
