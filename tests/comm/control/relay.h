#pragma once

#include <poll.h>

#include <atomic>
#include <initializer_list>
#include <mutex>
#include <thread>

#include "tests/comm/control/meeting.h"

namespace lockstep::testing {

/// A host on the way from one rank to the rank that it joins. It passes on all bytes, and can do
/// more with those to the rank that gathers.
class Relay {
 public:
  enum class Attack { none, repeat, change };

  explicit Relay(const control::Address& to) : to_(to) {
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

  control::Address address() const { return control::Address::local(listening_.get()); }
  /// All bytes to the rank that gathers, and those from it.
  std::string passed() const { return copy_of(passed_); }
  std::string returned() const { return copy_of(returned_); }
  /// Does this to the next bytes to the rank that gathers.
  void attack(Attack attack) { attack_ = attack; }

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
        if (back > 0) keep(returned_, {room.data(), static_cast<std::size_t>(back)});
        if (back == 0 || (back > 0 && !pass(from, {room.data(), static_cast<std::size_t>(back)})))
          break;
        const auto got = ::recv(from.get(), room.data(), room.size(), MSG_DONTWAIT);
        if (got == 0 || (got > 0 && !disturb(to, {room.data(), static_cast<std::size_t>(got)})))
          break;
      }
    }
  }

  static bool readable(std::initializer_list<int> fds) {
    std::vector<pollfd> waiting;
    for (const int fd : fds) waiting.push_back({.fd = fd, .events = POLLIN, .revents = 0});
    return ::poll(waiting.data(), waiting.size(), 10) > 0;
  }

  static bool pass(const detail::Descriptor& to, std::string_view bytes) {
    return ::send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }

  void keep(std::string& in, std::string_view bytes) {
    const std::lock_guard lock(mutex_);
    in += bytes;
  }

  bool disturb(const detail::Descriptor& to, std::string_view got) {
    std::string bytes(got);
    keep(passed_, got);
    const auto attack = attack_.exchange(Attack::none);
    if (attack == Attack::repeat) bytes += bytes;
    if (attack == Attack::change) bytes.back() = static_cast<char>(bytes.back() ^ 1);
    return pass(to, bytes);
  }

  control::Address to_;
  detail::Descriptor listening_ = control::listen_at(control::Address::any(AF_INET));
  mutable std::mutex mutex_;
  std::string passed_;
  std::string returned_;
  std::atomic<Attack> attack_ = Attack::none;
  std::jthread thread_;
};

}  // namespace lockstep::testing
