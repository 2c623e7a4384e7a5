#include "lockstep/core/memory.h"

#include <malloc.h>

#include <limits>

namespace lockstep {

void keep_freed_memory(bool one_arena) {
#ifdef __GLIBC__
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  ::mallopt(M_TOP_PAD, 64 << 20);
  // Other arenas send every request over 64 MiB back to mmap.
  if (one_arena) ::mallopt(M_ARENA_MAX, 1);
#endif
}

}  // namespace lockstep
