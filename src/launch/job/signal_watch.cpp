#include "launch/job/signal_watch.h"

#include <csignal>

#include "launch/system.h"

namespace lockstep::inline v0_2::launch {

SignalWatch::SignalWatch(bool forward) : forward_(forward) {
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &standard, nullptr);
  sigset_t watched;
  sigemptyset(&watched);
  sigaddset(&watched, SIGCHLD);
  for (std::size_t i = 0; i < forwarded.size(); ++i) {
    sigaddset(&watched, forwarded[i]);
    sigaction(forwarded[i], nullptr, &forwarded_before_[i]);
  }
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCONT, SIGWINCH}) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&watched, signal);
  }
  if (sigprocmask(SIG_SETMASK, &watched, nullptr) != 0) throw_system("block signals");
  // Writes to a closed output return EPIPE instead of raising SIGPIPE.
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &pipe_before_);
  struct sigaction interrupt {};
  interrupt.sa_handler = [](int) {};
  sigaction(SIGALRM, &interrupt, &alarm_before_);
  events_ = Descriptor(signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!events_) {
    restore();
    throw_system("watch for signals");
  }
}

SignalWatch::~SignalWatch() {
  // Discards what is pending now, which was for a job that has ended. A terminating signal still
  // ends the launcher.
  for (const int signal : forwarded) std::signal(signal, SIG_IGN);
  restore();
}

std::optional<signalfd_siginfo> SignalWatch::next() {
  signalfd_siginfo event{};
  do {
    if (read(events_.get(), &event, sizeof(event)) != sizeof(event)) return std::nullopt;
  } while (!forward_ && is_forwarded(static_cast<int>(event.ssi_signo)));
  return event;
}

std::optional<int> SignalWatch::pending_end_signal() const noexcept {
  sigset_t waiting;
  sigemptyset(&waiting);
  sigpending(&waiting);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (sigismember(&waiting, signal) == 1) return signal;
  }
  return std::nullopt;
}

void SignalWatch::restore() const noexcept {
  sigaction(SIGPIPE, &pipe_before_, nullptr);
  sigaction(SIGALRM, &alarm_before_, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (std::size_t i = 0; i < forwarded.size(); ++i) {
    sigaction(forwarded[i], &forwarded_before_[i], nullptr);
  }
}

}  // namespace lockstep::launch
