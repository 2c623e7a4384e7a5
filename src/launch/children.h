#pragma once

#include <sys/types.h>

#include <chrono>
#include <set>
#include <string>

namespace lockstep::inline v0_2::launch {

/// A process's children, ended ones that it has not reaped included.
std::set<pid_t> children(pid_t parent);

/// Waits until then for a child to end; leaves it to be reaped. False when it still runs.
bool await_end(pid_t child, std::chrono::steady_clock::time_point until) noexcept;

/// Kills and reaps children other than those spared, and theirs as they become orphans. Returns
/// those that SIGKILL did not end within this time.
std::set<pid_t> end_children(const std::set<pid_t>& spared,
                             std::chrono::milliseconds time) noexcept;

/// What a detail::Process::state means: "running", "sleeping", "stopped by a signal", …
const char* state_text(char state);

/// The file name of what the process executes; empty where that cannot be read.
std::string program_of(pid_t pid);

/// The kernel function that the process waits in; empty where that cannot be read.
std::string kernel_wait_of(pid_t pid);

}  // namespace lockstep::launch
