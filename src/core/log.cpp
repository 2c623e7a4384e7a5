#include "core/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <mutex>
#include <utility>

#include "core/environment.h"
#include "core/text.h"

namespace lockstep::inline v0_2::log {
namespace {

spdlog::level::level_enum translate(LogLevel level) {
  constexpr std::array levels{spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                              spdlog::level::err};
  return levels[static_cast<std::size_t>(level)];
}

spdlog::logger& logger() {
  // Never destroyed, since MPI ends after static objects of this library and may log.
  static auto& instance = *[] {
    auto* made = new spdlog::logger("lockstep", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    const auto level = Environment::get().log_level;
    made->set_level(level ? translate(*level) : spdlog::level::off);
    made->set_pattern("%H:%M:%S.%e lockstep %l (%P) %v");
    return made;
  }();
  return instance;
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
  if (!to_sink(level, text)) logger().log(translate(level), text);
}

void notice(std::string_view text) {
  if (to_sink(LogLevel::warn, text)) return;
  if (logger().should_log(spdlog::level::warn)) return logger().warn(text);
  const auto line = detail::concat("lockstep: ", text, '\n');
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace lockstep::log

namespace lockstep::inline v0_2 {

void set_log_sink(LogSink sink, LogLevel least) {
  const std::lock_guard lock(log::mutex);
  log::sink = std::move(sink);
  log::least_of_sink = least;
}

}  // namespace lockstep
