#include "tests/parallel/large_requests.h"

#include <cerrno>
#include <cstdlib>
#include <limits>

namespace {

// Set at load time, as malloc is called before any constructor.
thread_local std::size_t least_counted = std::numeric_limits<std::size_t>::max();
thread_local std::size_t requests_counted = 0;

}  // namespace

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

bool lockstep::testing::LargeRequests::can_count() { return false; }

#else

bool lockstep::testing::LargeRequests::can_count() { return true; }

static void count_request(std::size_t bytes) {
  if (bytes >= least_counted) ++requests_counted;
}

// The program's own functions come before the C library's for every library in it. That one's are
// still there under these names.
extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

void* malloc(std::size_t bytes) noexcept {
  count_request(bytes);
  return __libc_malloc(bytes);
}

void* calloc(std::size_t count, std::size_t bytes) noexcept {
  count_request(count * bytes);
  return __libc_calloc(count, bytes);
}

void* realloc(void* memory, std::size_t bytes) noexcept {
  count_request(bytes);
  return __libc_realloc(memory, bytes);
}

void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  count_request(bytes);
  return __libc_memalign(alignment, bytes);
}

int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) noexcept {
  count_request(bytes);
  void* got = __libc_memalign(alignment, bytes);
  if (got == nullptr) return ENOMEM;
  *memory = got;
  return 0;
}
}

#endif

namespace lockstep::testing {

LargeRequests::LargeRequests(std::size_t least_bytes) {
  requests_counted = 0;
  least_counted = least_bytes;
}

LargeRequests::~LargeRequests() { least_counted = std::numeric_limits<std::size_t>::max(); }

std::size_t LargeRequests::count() const { return requests_counted; }

}  // namespace lockstep::testing
