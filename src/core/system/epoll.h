#pragma once

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>

namespace lockstep::inline v0_2::detail {

/// Waits until a descriptor of the epoll instance is ready, for at most `longest`. Whether one is.
inline bool await_event(int events, std::chrono::nanoseconds longest) {
  using std::chrono::milliseconds;
  const timespec time{.tv_sec = longest.count() / 1'000'000'000,
                      .tv_nsec = longest.count() % 1'000'000'000};
  epoll_event ready{};
  int count = ::epoll_pwait2(events, &ready, 1, &time, nullptr);
  // Linux before 5.11 has no such call, and a filter of system calls may forbid it.
  if (count < 0 && errno != EINTR) {
    const auto rounded = std::max(std::chrono::ceil<milliseconds>(longest), milliseconds(1));
    count = ::epoll_wait(events, &ready, 1, static_cast<int>(rounded.count()));
  }
  return count > 0;
}

}  // namespace lockstep::detail
