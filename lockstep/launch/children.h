#pragma once

#include <sys/types.h>

#include <set>

namespace lockstep::launch {

/// This process's children, ended ones that nobody reaped included.
std::set<pid_t> children();

/// Kills and reaps children other than those spared, and theirs as they become orphans, until none
/// is left.
void end_children(const std::set<pid_t>& spared) noexcept;

}  // namespace lockstep::launch
