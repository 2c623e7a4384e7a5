#pragma once

#include <sys/types.h>

#include <string>

namespace lockstep::inline v0_2::launch {

/// What a detail::Process::state means: "running", "sleeping", "stopped by a signal", …
const char* state_text(char state);

/// The file name of what the process executes; empty where that cannot be read.
std::string program_of(pid_t pid);

/// The kernel function that the process waits in; empty where that cannot be read.
std::string kernel_wait_of(pid_t pid);

}  // namespace lockstep::launch
