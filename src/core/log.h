#pragma once

#include <string_view>

#include "lockstep/log_sink.h"

namespace lockstep::inline v0_2::log {

/// Writes a message to the sink of set_log_sink(), or to stderr if LOCKSTEP_LOG is set: to the
/// lowest level that is written, debug, info, warn or error.
void write(LogLevel level, std::string_view text);

/// Writes a warning also if LOCKSTEP_LOG is not set: for what a user must know and no error
/// reports. docs/errors.md lists these lines.
void notice(std::string_view text);

inline void debug(std::string_view text) { write(LogLevel::debug, text); }
inline void warn(std::string_view text) { write(LogLevel::warn, text); }

}  // namespace lockstep::log
