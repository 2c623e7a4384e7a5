#pragma once

namespace lockstep {

/// Makes glibc keep freed memory in this process instead of returning it to the kernel: a training
/// step would otherwise page-fault thousands of times. one_arena also gives all threads one arena;
/// for that, call before they are made. Memory held grows to the largest need there was.
void keep_freed_memory(bool one_arena);

}  // namespace lockstep
