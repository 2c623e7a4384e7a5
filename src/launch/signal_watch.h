#pragma once

#include <signal.h>
#include <sys/signalfd.h>

#include <optional>

#include "launch/system.h"

namespace lockstep::inline v0_2::launch {

/// The signals that the launcher handles, read as events from a descriptor. A signal that the
/// launcher inherited as ignored (nohup) stays ignored. SIGCHLD does not, because the kernel would
/// then reap ranks before their exit status is read. Inherited blocked signals are unblocked.
/// SIGALRM only interrupts system calls.
class SignalWatch {
 public:
  SignalWatch();
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
  Descriptor events_;
  struct sigaction pipe_before_ {};
  struct sigaction alarm_before_ {};
};

}  // namespace lockstep::launch
