#include "launch/console.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <climits>
#include <csignal>

namespace lockstep::inline v0_2::launch {

Console::~Console() { drain(short_patience); }

std::optional<int> Console::drain(Patience patience) noexcept {
  const auto taken = [&] { return outputs.out.taken() + outputs.err.taken(); };
  auto progress = Clock::now();
  std::optional<int> asked;
  outputs.out.write_ready();
  outputs.err.write_ready();
  while (waiting() && !asked) {
    const auto before = taken();
    const auto until = patience ? std::optional(progress + *patience) : std::nullopt;
    asked = turn(until);
    if (taken() != before) {
      progress = Clock::now();
    } else if (until && Clock::now() >= *until) {
      break;
    }
  }
  outputs.out.give_up();
  outputs.err.give_up();
  return asked;
}

std::optional<int> Console::pause(std::chrono::milliseconds duration) noexcept {
  const auto until = Clock::now() + duration;
  std::optional<int> asked;
  while (!asked && Clock::now() < until) asked = turn(until);
  return asked;
}

std::optional<int> Console::turn(std::optional<Clock::time_point> until) noexcept {
  std::array<pollfd, 3> news{{{.fd = signals.fd(), .events = POLLIN, .revents = 0},
                              {.fd = -1, .events = POLLOUT, .revents = 0},
                              {.fd = -1, .events = POLLOUT, .revents = 0}}};
  if (outputs.out.waiting()) news[1].fd = outputs.out.fd();
  if (outputs.err.waiting()) news[2].fd = outputs.err.fd();
  long long timeout = -1;
  if (until) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*until - Clock::now());
    timeout = std::clamp<long long>(left.count(), 0, INT_MAX);
  }
  poll(news.data(), news.size(), static_cast<int>(timeout));
  outputs.out.write_ready();
  outputs.err.write_ready();
  while (const auto event = signals.next()) {
    const auto signal = static_cast<int>(event->ssi_signo);
    if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) return signal;
    if (signal == SIGTSTP) raise(SIGSTOP);
  }
  return std::nullopt;
}

}  // namespace lockstep::launch
