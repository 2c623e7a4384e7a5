#pragma once

#include <string_view>

namespace lockstep::log {

/// Messages go to stderr, and only if LOCKSTEP_LOG is debug, info, warn or error.
enum class Level { debug, info, warn, error };

/// Whether messages of this level are written: ask before building an expensive text.
bool enabled(Level level);

void write(Level level, std::string_view text);

inline void debug(std::string_view text) { write(Level::debug, text); }
inline void info(std::string_view text) { write(Level::info, text); }
inline void warn(std::string_view text) { write(Level::warn, text); }

}  // namespace lockstep::log
