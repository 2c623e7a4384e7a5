#pragma once

#include <signal.h>
#include <sys/signalfd.h>

#include <optional>

#include "lockstep/launch/descriptor.h"

namespace lockstep::launch {

/// The signals a launcher lives by, taken as events from a descriptor instead of by handlers. Those
/// that the launcher was started to ignore (nohup) stay ignored. Everything is put back at the end.
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

  /// Lets signals end the launcher again. A reader that goes away still shows as EPIPE.
  void unblock() const noexcept;
  /// Gives a forked child the signals that the launcher was started with.
  void restore() const noexcept;

 private:
  Descriptor events_;
  sigset_t before_{};
  struct sigaction pipe_before_ {};
};

}  // namespace lockstep::launch
