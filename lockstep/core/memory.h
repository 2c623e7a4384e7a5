#pragma once

#include <cstddef>

namespace lockstep {

/// Makes glibc keep freed memory in this process instead of returning it to the kernel: a training
/// step would otherwise page-fault thousands of times. one_arena also gives all threads one arena;
/// for that, call before they are made. Memory held grows to the largest need there was.
void keep_freed_memory(bool one_arena);

/// Gives the heap pages for so many bytes, which are free to be allocated afterwards; fewer when
/// the machine has not as many. Where threads share an arena their needs meet in ever new ways, and
/// the most is reached late: page by page, a fault each.
void populate_heap(std::size_t bytes);

}  // namespace lockstep
