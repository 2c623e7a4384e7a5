#include "launch/job/console.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>

#include "core/system/terminal.h"
#include "core/system/topology.h"
#include "core/text.h"
#include "launch/system.h"

namespace lockstep::inline v0_2::launch {
namespace {

void copy_size(int model, int master) noexcept {
  winsize size{};
  if (ioctl(model, TIOCGWINSZ, &size) == 0) ioctl(master, TIOCSWINSZ, &size);
}

/// A pseudo-terminal in place of a pipe, with the window size of model, the descriptor of a
/// terminal: bytes that a rank writes are read unchanged. Programs check whether their output is a
/// terminal to select progress bars and buffering. With it, rank 0 gets the same answer as the
/// launcher. Empty descriptors if that fails.
Pipe make_terminal(int model) {
  Descriptor master(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  std::array<char, 64> name{};
  if (!master || grantpt(master.get()) != 0 || unlockpt(master.get()) != 0 ||
      ptsname_r(master.get(), name.data(), name.size()) != 0) {
    return {};
  }
  Descriptor slave(open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC));
  termios settings{};
  if (!slave || tcgetattr(slave.get(), &settings) != 0) return {};
  // Raw mode: the real terminal translates line ends.
  cfmakeraw(&settings);
  tcsetattr(slave.get(), TCSANOW, &settings);
  copy_size(model, master.get());
  return {std::move(master), std::move(slave)};
}

}  // namespace

Console::~Console() { drain(short_patience); }

std::optional<int> Console::drain(Patience patience) noexcept {
  const auto taken = [&] { return outputs.out.taken() + outputs.err.taken(); };
  auto progress = Clock::now();
  std::optional<int> end_signal;
  outputs.out.write_ready();
  outputs.err.write_ready();
  while ((outputs.out.has_queued() || outputs.err.has_queued()) && !end_signal) {
    const auto before = taken();
    const auto until = patience ? std::optional(progress + *patience) : std::nullopt;
    end_signal = poll_once(until);
    if (taken() != before) {
      progress = Clock::now();
    } else if (until && Clock::now() >= *until) {
      break;
    }
  }
  outputs.out.give_up();
  outputs.err.give_up();
  return end_signal;
}

std::optional<int> Console::pause(std::chrono::milliseconds duration) noexcept {
  const auto until = Clock::now() + duration;
  std::optional<int> end_signal;
  while (!end_signal && Clock::now() < until) end_signal = poll_once(until);
  return end_signal;
}

int Console::wait(std::vector<pollfd>& awaited, std::optional<Clock::time_point> until) const {
  const auto reader_of = [](const Output& output) {
    return pollfd{.fd = output.has_queued() ? output.fd() : -1, .events = POLLOUT, .revents = 0};
  };
  awaited.insert(awaited.end(), {pollfd{.fd = signals.fd(), .events = POLLIN, .revents = 0},
                                 reader_of(outputs.out), reader_of(outputs.err)});
  if (nodes) {
    nodes->await(awaited);
    until = std::min(until.value_or(nodes->next()), nodes->next());
  }
  long long timeout = -1;
  if (until) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*until - Clock::now());
    timeout = std::clamp<long long>(left.count(), 0, INT_MAX);
  }
  return poll(awaited.data(), awaited.size(), static_cast<int>(timeout));
}

std::optional<int> Console::poll_once(std::optional<Clock::time_point> until) noexcept {
  std::vector<pollfd> ready;
  wait(ready, until);
  outputs.out.write_ready();
  outputs.err.write_ready();
  while (const auto event = signals.next()) {
    const auto signal = static_cast<int>(event->ssi_signo);
    if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) {
      if (stdin_ended()) nodes.reset();  // see Supervisor::interrupt()
      if (nodes) nodes->send(signal_frame(signal));
      return signal;
    }
    if (signal == SIGTSTP) raise(SIGSTOP);
    if (!is_forwarded(signal)) continue;
    to_forward.insert(signal);
    untold.insert(signal);
  }
  if (!nodes) return std::nullopt;
  nodes->update();
  return nodes->take_end_signal();
}

std::vector<WriteEnds> Streams::create(const Plan& plan) {
  std::vector<WriteEnds> ends;
  for (int local = 0; local < plan.options.ranks; ++local) {
    const int rank = plan.first_rank + local;
    ends.push_back({.out = add(rank, outputs_.out, plan.options, "out"),
                    .err = add(rank, outputs_.err, plan.options, "err")});
  }
  return ends;
}

Descriptor Streams::add(int rank, Output& output, const Options& options, std::string_view log) {
  auto file = open_log(options.log_directory, rank, log);
  const bool on_terminal = isatty(output.fd()) == 1;
  const auto show = rank == 0       ? (on_terminal ? Show::bytes : Show::lines)
                    : options.quiet ? Show::nothing
                                    : Show::prefixed;
  const auto host = options.node.shows_host ? detail::concat(' ', detail::host_name()) : "";
  const auto label = detail::concat('[', rank, host, ']');
  const auto prefix = detail::in_tone(label, detail::Tone::label, output.colour()) + ' ';
  auto ends = rank == 0 && on_terminal ? make_terminal(output.fd()) : Pipe{};
  if (ends.read) {
    terminals_.emplace_back(output.fd(), ends.read.get());
  } else {
    ends = make_pipe();
  }
  streams_.emplace_back(std::move(ends.read), show, rank == 0 ? "" : prefix, output,
                        std::move(file));
  return std::move(ends.write);
}

void Streams::await(std::vector<pollfd>& awaited) const {
  for (const auto& stream : streams_) {
    const int fd = stream.output().full() ? -1 : stream.fd();
    awaited.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  }
}

void Streams::read_ready(std::span<const pollfd> awaited) {
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (awaited[i].revents != 0) streams_[i].read_ready();
  }
}

void Streams::read_errors() {
  for (std::size_t i = 1; i < streams_.size(); i += 2) {
    for (int reads = 0; reads < 64 && streams_[i].open() && streams_[i].read_ready(); ++reads) {
    }
  }
}

void Streams::close(Losses& losses) {
  for (auto& stream : streams_) {
    stream.close();
    if (stream.log().error() != 0)
      losses.add(stream.log().path(), std::strerror(stream.log().error()));
  }
}

void Streams::copy_window_size() const noexcept {
  for (const auto& [model, copy] : terminals_) copy_size(model, copy);
}

SignalWatch::SignalWatch(bool forward) : forward_(forward) {
  std::signal(SIGCHLD, SIG_DFL);
  sigset_t watched;
  sigemptyset(&watched);
  sigaddset(&watched, SIGCHLD);
  for (const int signal : forwarded) {
    sigaddset(&watched, signal);
    sigaction(signal, nullptr, &before_[signal]);
  }
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCONT, SIGWINCH}) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&watched, signal);
  }
  if (sigprocmask(SIG_SETMASK, &watched, nullptr) != 0) throw_system("block signals");
  const auto handle = [&](int signal, void (*handler)(int)) {
    struct sigaction action {};
    action.sa_handler = handler;
    sigaction(signal, &action, &before_[signal]);
  };
  handle(SIGPIPE, SIG_IGN);  // writes to a closed output return EPIPE instead of raising SIGPIPE
  handle(SIGALRM, [](int) {});
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
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const auto& [signal, action] : before_) sigaction(signal, &action, nullptr);
}

}  // namespace lockstep::launch
