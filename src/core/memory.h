#pragma once

#include <cstddef>

namespace lockstep::inline v0_2 {

/// Makes glibc keep freed memory in this process instead of returning it to the kernel. Otherwise a
/// training step would page-fault thousands of times. Memory held grows to the largest need there
/// was.
void keep_freed_memory();

/// Makes all threads that are created later share one arena of glibc. Other arenas return every
/// block over 64 MiB to the kernel, also after keep_freed_memory().
void use_one_arena();

/// Gives the heap pages for so many bytes, which are free to be allocated afterwards; fewer when
/// the machine has not as many. Where threads share an arena their needs meet in ever new ways, and
/// the most is reached late: page by page, a fault each.
void populate_heap(std::size_t bytes);

}  // namespace lockstep
