#pragma once

#include <sys/types.h>

#include <chrono>
#include <set>
#include <string>

namespace lockstep::inline v0_2::launch {

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

/// The kernel function in which the process waits; empty if it cannot be read.
std::string kernel_wait_of(pid_t pid);

}  // namespace lockstep::launch
