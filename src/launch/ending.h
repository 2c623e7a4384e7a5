#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace lockstep::inline v0_2::launch {

/// How a process ended.
struct Ending {
  bool by_signal = false;
  int code = 0;  ///< exit code, or signal number

  bool failed() const { return by_signal || code != 0; }
  /// The exit code as in a shell: 128 + signal for a signal.
  int exit_code() const { return by_signal ? 128 + code : code; }
  /// "exit code 3", "SIGSEGV".
  std::string text() const;
};

/// "SIGKILL", or "signal 99" for one without a name.
std::string signal_name(int signal);

/// How a child has ended; nullopt if it runs. Does not reap it.
std::optional<Ending> ending_of(pid_t child);

}  // namespace lockstep::launch
