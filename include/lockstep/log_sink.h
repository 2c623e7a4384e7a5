#pragma once

#include <functional>
#include <string_view>

namespace lockstep::inline v0_2 {

enum class LogLevel { debug, info, warn, error };

/// Receives one message without a line feed. Any thread of the process calls it, one at a time. It
/// must not call Lockstep, nor throw.
using LogSink = std::function<void(LogLevel, std::string_view)>;

/// Messages of this level and above go to the sink in place of stderr, whatever LOCKSTEP_LOG is:
/// also those that Lockstep prints without LOCKSTEP_LOG, of level warn. An empty sink restores
/// stderr. A process that crashes still writes to stderr.
/// Ranks: any; not collective. Threads: any.
void set_log_sink(LogSink sink, LogLevel least = LogLevel::warn);

}  // namespace lockstep
