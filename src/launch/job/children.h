#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <set>
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

/// Time after SIGKILL until the launcher gives up waiting for a process.
inline constexpr std::chrono::milliseconds kill_time{2000};

/// The pids of a process's children, including ended ones that are not reaped.
std::set<pid_t> children(pid_t parent);

/// Waits until the child has ended or the time has come. Does not reap it. False if it still runs.
bool await_end(pid_t child, std::chrono::steady_clock::time_point until) noexcept;

/// Kills and reaps all children except those in `spared`, and their descendants when these become
/// children of this process. Returns the pids that SIGKILL did not end within `time`.
std::set<pid_t> end_children(const std::set<pid_t>& spared,
                             std::chrono::milliseconds time) noexcept;

/// The text for a detail::Process::state: "running", "sleeping", "stopped by a signal", …
const char* state_text(char state);

/// The file name of the program that the process executes; empty if it cannot be read.
std::string program_of(pid_t pid);

/// "rank 1 (pid 77, in an uninterruptible wait of the kernel)".
std::string survivor_text(const std::string& what, pid_t pid);

}  // namespace lockstep::launch
