#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "core/system/process.h"

namespace lockstep::inline v0_2::launch {

using detail::Descriptor;

/// The two ends of a pipe or of a pseudo-terminal, both close-on-exec.
struct Pipe {
  Descriptor read;
  Descriptor write;
};

/// Creates a pipe.
/// Throws: CommError if the process cannot open more files.
Pipe make_pipe();

/// Throws a CommError: "the launcher cannot WHAT: " and the text of errno.
[[noreturn]] void throw_system(std::string_view what);

/// The limit of open files of this process: raises the soft limit to `needed`.
class FileLimit {
 public:
  /// Throws: CommError if the hard limit is below `needed`.
  explicit FileLimit(unsigned long needed);

  /// For a forked child: restores the limit with which the launcher was started.
  void restore() const noexcept;

 private:
  rlimit before_{};
};

/// Opens /dev/null for each of the descriptors 0, 1 and 2 that is closed, so that no pipe gets its
/// number.
void open_standard_descriptors();

/// Sends SIGTERM to this process when its stdin ends, as it does when ssh has ended, and again
/// every second.
void end_with_stdin();
/// Whether end_with_stdin() was called and stdin has ended.
bool stdin_ended();

/// The file of a program: the name itself if it contains a slash, else the first match in the
/// folders of search_path.
/// Throws: InvalidArgument naming the program and the reason why it cannot be executed.
std::filesystem::path find_program(const std::string& name, std::string_view search_path);

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

/// The pids of this process's children, including ended ones that are not reaped.
std::set<pid_t> children();

/// Waits until the child has ended or the time has come. Does not reap it. False if it still runs.
bool await_end(pid_t child, std::chrono::steady_clock::time_point until) noexcept;

/// Kills and reaps all children except those in `spared`, and their descendants when these become
/// children of this process. Returns the pids that SIGKILL did not end within `time`.
std::set<pid_t> end_children(const std::set<pid_t>& spared,
                             std::chrono::milliseconds time) noexcept;

/// The text for a detail::Process::state: "running", "sleeping", …
const char* state_text(char state);

/// "rank 1 (pid 77, in an uninterruptible wait of the kernel)".
std::string survivor_text(const std::string& what, pid_t pid);

/// The result of a function in a child process, or the reason why there is none.
struct Probed {
  std::string text;
  std::string problem;  ///< empty: the function returned
};

/// Calls the function in a forked child and returns its text. The function may load libraries that
/// must not stay in this process; a crash or a hang of theirs is a `problem`. Its standard output
/// is standard error.
///
/// A child is necessary for CUDA: a process that called cuInit() cannot use CUDA in its forked
/// children, and the launcher forks its ranks. For a program with one thread, whose child may call
/// any function.
///
/// Throws: CommError if the system refuses a pipe or a process.
Probed probe(const std::function<std::string()>& function, std::chrono::milliseconds limit);

}  // namespace lockstep::launch
