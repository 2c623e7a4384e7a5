#pragma once

#include <poll.h>

#include <initializer_list>
#include <mutex>
#include <thread>

#include "tests/comm/control/meeting.h"

namespace lockstep::testing {

/// A host on the way from one rank to the rank that it joins. It passes on all bytes and keeps
/// them.
class Relay {
 public:
  explicit Relay(const control::Address& to) : to_(to) {
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

  control::Address address() const { return control::Address::local(listening_.get()); }
  /// All bytes to the rank that gathers, and those from it.
  std::string passed() const { return copy_of(passed_); }
  std::string returned() const { return copy_of(returned_); }

 private:
  std::string copy_of(const std::string& bytes) const {
    const std::lock_guard lock(mutex_);
    return bytes;
  }

  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (!readable({listening_.get()})) continue;
      const detail::Descriptor from(
          ::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      const detail::Descriptor to(::socket(to_.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (::connect(to.get(), to_.get(), to_.length()) != 0) continue;
      while (!stop.stop_requested()) {
        if (!readable({from.get(), to.get()})) continue;
        std::array<char, 65536> room;
        const auto back = ::recv(to.get(), room.data(), room.size(), MSG_DONTWAIT);
        if (back == 0 ||
            (back > 0 && !pass(from, {room.data(), static_cast<std::size_t>(back)}, returned_)))
          break;
        const auto got = ::recv(from.get(), room.data(), room.size(), MSG_DONTWAIT);
        if (got == 0 ||
            (got > 0 && !pass(to, {room.data(), static_cast<std::size_t>(got)}, passed_)))
          break;
      }
    }
  }

  static bool readable(std::initializer_list<int> fds) {
    std::vector<pollfd> waiting;
    for (const int fd : fds) waiting.push_back({.fd = fd, .events = POLLIN, .revents = 0});
    return ::poll(waiting.data(), waiting.size(), 10) > 0;
  }

  bool pass(const detail::Descriptor& to, std::string_view bytes, std::string& kept) {
    const std::lock_guard lock(mutex_);
    kept += bytes;
    return ::send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }

  control::Address to_;
  detail::Descriptor listening_ = control::listen_at(control::Address::any(AF_INET));
  mutable std::mutex mutex_;
  std::string passed_;
  std::string returned_;
  std::jthread thread_;
};

}  // namespace lockstep::testing
