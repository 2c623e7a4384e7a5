#pragma once

#include <signal.h>
#include <sys/signalfd.h>

#include <optional>

#include "launch/system.h"

namespace lockstep::inline v0_2::launch {

/// The signals that the launcher handles, read as events from a descriptor. A signal that the
/// launcher inherited as ignored (nohup) stays ignored, except SIGCHLD: the kernel would reap ranks
/// before their exit status is read. Signals that it inherited as blocked do not stay blocked.
/// SIGALRM interrupts system calls and has no other effect.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  int fd() const { return events_.get(); }
  std::optional<signalfd_siginfo> next();
  /// A signal that waits to be taken and asks the launcher to end, as Ctrl-C does.
  std::optional<int> end_asked() const noexcept;

  /// Gives a forked child no blocked signal, and the dispositions that the launcher inherited,
  /// except an ignored SIGCHLD.
  void restore() const noexcept;

 private:
  Descriptor events_;
  struct sigaction pipe_before_ {};
  struct sigaction alarm_before_ {};
};

}  // namespace lockstep::launch
