#include "launch/console.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>

#include <algorithm>
#include <array>
#include <climits>
#include <csignal>
#include <cstdlib>

namespace lockstep::inline v0_2::launch {

Terminal make_terminal(int model) {
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
  copy_window_size(model, master.get());
  return {std::move(master), std::move(slave)};
}

void copy_window_size(int model, int master) noexcept {
  winsize size{};
  if (ioctl(model, TIOCGWINSZ, &size) == 0) ioctl(master, TIOCSWINSZ, &size);
}

Console::~Console() { drain(short_patience); }

std::optional<int> Console::drain(Patience patience) noexcept {
  const auto taken = [&] { return outputs.out.taken() + outputs.err.taken(); };
  auto progress = Clock::now();
  std::optional<int> end_signal;
  outputs.out.write_ready();
  outputs.err.write_ready();
  while (has_queued() && !end_signal) {
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

std::optional<int> Console::poll_once(std::optional<Clock::time_point> until) noexcept {
  std::array<pollfd, 3> ready{{{.fd = signals.fd(), .events = POLLIN, .revents = 0},
                               {.fd = -1, .events = POLLOUT, .revents = 0},
                               {.fd = -1, .events = POLLOUT, .revents = 0}}};
  if (outputs.out.has_queued()) ready[1].fd = outputs.out.fd();
  if (outputs.err.has_queued()) ready[2].fd = outputs.err.fd();
  long long timeout = -1;
  if (until) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*until - Clock::now());
    timeout = std::clamp<long long>(left.count(), 0, INT_MAX);
  }
  poll(ready.data(), ready.size(), static_cast<int>(timeout));
  outputs.out.write_ready();
  outputs.err.write_ready();
  while (const auto event = signals.next()) {
    const auto signal = static_cast<int>(event->ssi_signo);
    if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) return signal;
    if (signal == SIGTSTP) raise(SIGSTOP);
    if (is_forwarded(signal)) to_forward.insert(signal);
  }
  return std::nullopt;
}

}  // namespace lockstep::launch
