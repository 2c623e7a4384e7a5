#pragma once

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string_view>

namespace lockstep::inline v0_2::detail {

/// A text of at most `Capacity` bytes, for signal handlers: no allocation, no locale. What does not
/// fit is left out.
template <std::size_t Capacity>
class SignalSafeText {
 public:
  SignalSafeText& operator<<(std::string_view text) noexcept {
    const auto length = std::min(text.size(), Capacity - 1 - size_);
    std::copy_n(text.data(), length, text_.data() + size_);
    size_ += length;
    text_[size_] = '\0';
    return *this;
  }
  template <std::integral Number>
  requires(!std::same_as<Number, char> && !std::same_as<Number, bool>) SignalSafeText& operator<<(
      Number number) noexcept {
    if (number < 0) *this << "-";
    const auto value = static_cast<std::uint64_t>(number);
    return add(number < 0 ? 0 - value : value, 10);
  }
  SignalSafeText& hex(std::uint64_t number) noexcept {
    *this << "0x";
    return add(number, 16);
  }

  std::string_view view() const { return {text_.data(), size_}; }
  const char* c_str() const { return text_.data(); }
  std::size_t size() const { return size_; }
  void clear() {
    size_ = 0;
    text_[0] = '\0';
  }

 private:
  SignalSafeText& add(std::uint64_t number, unsigned base) noexcept {
    std::array<char, 24> digits;
    auto at = digits.size();
    do {
      digits[--at] = "0123456789abcdef"[number % base];
      number /= base;
    } while (number != 0);
    return *this << std::string_view(digits.data() + at, digits.size() - at);
  }

  std::array<char, Capacity> text_{};
  std::size_t size_ = 0;
};

/// Copies a text into an array, and truncates one that is too long. Async-signal-safe.
template <std::size_t Capacity>
void copy_text(char (&to)[Capacity], std::string_view text) noexcept {
  to[text.copy(to, Capacity - 1)] = '\0';
}

/// Writes all bytes to a descriptor. False if an error prevents it. Async-signal-safe.
inline bool write_all(int fd, const void* data, std::size_t bytes) noexcept {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const auto written = ::write(fd, from, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    from += written;
    bytes -= static_cast<std::size_t>(written);
  }
  return true;
}

/// Writes a file by write(fd), which returns whether it has. The file replaces an earlier one when
/// it is complete; before, it has the name `part`. Returns errno, 0 if the file is written.
/// Async-signal-safe if write is.
template <class Write>
int replace_file(const char* path, const char* part, const Write& write,
                 mode_t mode = 0600) noexcept {
  const int out = ::open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode);
  if (out < 0) return errno;
  errno = 0;
  int error = write(out) ? 0 : errno != 0 ? errno : ENOSPC;
  if (::close(out) != 0 && error == 0) error = errno;
  if (error == 0 && std::rename(part, path) != 0) error = errno;
  if (error != 0) ::unlink(part);
  return error;
}

/// Waits until over() is true, which it checks every 2 ms, for at most `longest`. Async-signal-safe
/// if over is.
template <class Over>
void poll_until(const Over& over, std::chrono::milliseconds longest) noexcept {
  constexpr std::chrono::milliseconds nap{2};
  constexpr timespec time{.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(nap).count()};
  const auto begin = std::chrono::steady_clock::now();
  const auto waited = [&] { return std::chrono::steady_clock::now() - begin; };
  while (!over() && std::chrono::floor<std::chrono::milliseconds>(waited()) < longest) {
    ::clock_nanosleep(CLOCK_MONOTONIC, 0, &time, nullptr);
  }
}

}  // namespace lockstep::detail
