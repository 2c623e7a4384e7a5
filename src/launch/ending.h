#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace lockstep::inline v0_2::launch {

/// How a process ended.
struct Ending {
  bool by_signal = false;
  int code = 0;  ///< exit code, or signal

  bool failed() const { return by_signal || code != 0; }
  /// As a shell counts: 128 + signal.
  int exit_code() const { return by_signal ? 128 + code : code; }
  /// "exit code 3", "SIGSEGV".
  std::string text() const;
};

/// "SIGKILL", or "signal 99" for one without a name.
std::string signal_name(int signal);

/// How a child ended, or empty while it runs. Leaves it to be reaped.
std::optional<Ending> ending_of(pid_t child);

}  // namespace lockstep::launch
