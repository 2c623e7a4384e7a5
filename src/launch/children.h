#pragma once

#include <sys/types.h>

#include <chrono>
#include <set>

namespace lockstep::inline v0_2::launch {

/// A process's children, ended ones that it has not reaped included.
std::set<pid_t> children(pid_t parent);

/// Waits until then for a child to end; leaves it to be reaped. False when it still runs.
bool await_end(pid_t child, std::chrono::steady_clock::time_point until) noexcept;

/// Kills and reaps children other than those spared, and theirs as they become orphans. Returns
/// those that SIGKILL did not end within this time.
std::set<pid_t> end_children(const std::set<pid_t>& spared,
                             std::chrono::milliseconds time) noexcept;

}  // namespace lockstep::launch
