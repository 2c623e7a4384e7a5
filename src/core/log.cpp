#include "core/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <memory>

#include "core/environment.h"
#include "core/text.h"

namespace lockstep::inline v0_2::log {
namespace {

spdlog::level::level_enum translate(Level level) {
  switch (level) {
    case Level::debug:
      return spdlog::level::debug;
    case Level::info:
      return spdlog::level::info;
    case Level::warn:
      return spdlog::level::warn;
    case Level::error:
      return spdlog::level::err;
  }
  return spdlog::level::off;
}

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("lockstep",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    const auto& level = Environment::get().log_level;
    made->set_level(level.empty() ? spdlog::level::off : spdlog::level::from_str(level));
    made->set_pattern("%H:%M:%S.%e lockstep %l (%P) %v");
    return made;
  }();
  return *instance;
}

}  // namespace

void write(Level level, std::string_view text) { logger().log(translate(level), text); }

void notice(std::string_view text) {
  if (logger().should_log(spdlog::level::warn)) return warn(text);
  const auto line = detail::concat("lockstep: ", text, '\n');
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace lockstep::log
