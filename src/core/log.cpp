#include "core/log.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <ctime>
#include <iomanip>
#include <mutex>
#include <utility>

#include "core/environment.h"
#include "core/signal_safe_text.h"
#include "core/text.h"

namespace lockstep::inline v0_2::log {
namespace {

/// Whether LOCKSTEP_LOG names this level or a lower one.
bool is_shown(LogLevel level) {
  // A copy, since MPI ends after static objects of this library and may log.
  static const auto least = Environment::get().log_level;
  return least && level >= *least;
}

/// One line in one write: time, level, pid and text.
void print(LogLevel level, std::string_view text) {
  constexpr std::array names{"debug", "info", "warning", "error"};
  const auto now = std::chrono::system_clock::now();
  const auto since = std::chrono::floor<std::chrono::milliseconds>(now.time_since_epoch());
  const auto time = std::chrono::system_clock::to_time_t(now);
  tm parts{};
  std::array<char, 16> clock{};
  std::strftime(clock.data(), clock.size(), "%H:%M:%S", ::localtime_r(&time, &parts));
  const auto line = detail::concat(
      clock.data(), '.', std::setfill('0'), std::setw(3), since.count() % 1000, " lockstep ",
      names[static_cast<std::size_t>(level)], " (", ::getpid(), ") ", text, '\n');
  detail::write_all(STDERR_FILENO, line.data(), line.size());
}

std::mutex mutex;
LogSink sink;
LogLevel least_of_sink = LogLevel::warn;

/// Whether there is a sink, which then has the message if its level is high enough.
bool to_sink(LogLevel level, std::string_view text) {
  const std::lock_guard lock(mutex);
  if (sink && level >= least_of_sink) sink(level, text);
  return sink != nullptr;
}

}  // namespace

void write(LogLevel level, std::string_view text) {
  if (!to_sink(level, text) && is_shown(level)) print(level, text);
}

void notice(std::string_view text) {
  if (to_sink(LogLevel::warn, text)) return;
  if (is_shown(LogLevel::warn)) return print(LogLevel::warn, text);
  const auto line = detail::concat("lockstep: ", text, '\n');
  detail::write_all(STDERR_FILENO, line.data(), line.size());
}

}  // namespace lockstep::log

namespace lockstep::inline v0_2 {

void set_log_sink(LogSink sink, LogLevel least) {
  const std::lock_guard lock(log::mutex);
  log::sink = std::move(sink);
  log::least_of_sink = least;
}

}  // namespace lockstep
