#include "lockstep/launch/signal_watch.h"

#include "lockstep/launch/system.h"

namespace lockstep::launch {

SignalWatch::SignalWatch() {
  sigset_t watched;
  sigemptyset(&watched);
  sigaddset(&watched, SIGCHLD);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCONT, SIGWINCH}) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&watched, signal);
  }
  if (sigprocmask(SIG_BLOCK, &watched, &before_) != 0) throw_system("block signals");
  // A reader that goes away shows as EPIPE.
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &pipe_before_);
  events_ = Descriptor(signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!events_) {
    restore();
    throw_system("watch for signals");
  }
}

SignalWatch::~SignalWatch() {
  // What arrived after the last look was meant for a job that is over; a terminating signal still
  // ends the launcher.
  restore();
}

std::optional<signalfd_siginfo> SignalWatch::next() {
  signalfd_siginfo event{};
  if (read(events_.get(), &event, sizeof(event)) != sizeof(event)) return std::nullopt;
  return event;
}

std::optional<int> SignalWatch::end_asked() const noexcept {
  sigset_t waiting;
  sigemptyset(&waiting);
  sigpending(&waiting);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (sigismember(&waiting, signal) == 1) return signal;
  }
  return std::nullopt;
}

void SignalWatch::unblock() const noexcept { sigprocmask(SIG_SETMASK, &before_, nullptr); }

void SignalWatch::restore() const noexcept {
  sigaction(SIGPIPE, &pipe_before_, nullptr);
  unblock();
}

}  // namespace lockstep::launch
