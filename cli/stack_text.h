#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "comm/flight/stack_file.h"

namespace lockstep::cli {

/// The lines for a thread's stack: its name and state, and its innermost frames, such as
/// "  #1 load_batch() at train.cpp:42 (train)". Functions are found by addr2line of binutils.
std::vector<std::string> stack_lines(const detail::ProcessStacks::Thread& thread,
                                     std::size_t most_frames);

}  // namespace lockstep::cli
