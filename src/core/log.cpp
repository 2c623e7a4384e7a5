#include "core/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "core/environment.h"

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

}  // namespace lockstep::log
