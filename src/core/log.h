#pragma once

#include <string_view>

namespace lockstep::inline v0_2::log {

/// Writes log messages to stderr if LOCKSTEP_LOG is set. It is the lowest level that is written:
/// debug, info, warn or error.
enum class Level { debug, info, warn, error };

void write(Level level, std::string_view text);

/// Writes a line to stderr even if LOCKSTEP_LOG is not set: for what a user must know and no error
/// reports. docs/errors.md lists these lines.
void notice(std::string_view text);

inline void debug(std::string_view text) { write(Level::debug, text); }
inline void warn(std::string_view text) { write(Level::warn, text); }

}  // namespace lockstep::log
