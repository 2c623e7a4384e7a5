#include "tests/fuzz/fuzz.h"

#include <sanitizer/allocator_interface.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <limits>

namespace lockstep::fuzzing {
namespace {

constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();

std::atomic<std::int64_t> allocated{0};  ///< since the limit was set
std::atomic<std::int64_t> limit{unlimited};

void allocate(const volatile void*, std::size_t size) {
  const std::int64_t most = limit;
  if (most == unlimited) return;
  const auto now = allocated += static_cast<std::int64_t>(size);
  if (now <= most) return;
  limit = unlimited;
  std::fprintf(stderr, "fuzz: %zu bytes more make %lld bytes, expected at most %lld\n", size,
               static_cast<long long>(now), static_cast<long long>(most));
  std::abort();
}

void release(const volatile void* memory) {
  if (limit == unlimited || memory == nullptr) return;
  allocated -=
      static_cast<std::int64_t>(__sanitizer_get_allocated_size(const_cast<const void*>(memory)));
}

const int hooks_installed = __sanitizer_install_malloc_and_free_hooks(allocate, release);

}  // namespace

void require(bool condition, std::string_view text) {
  if (condition) return;
  std::fprintf(stderr, "fuzz: violated: %.*s\n", static_cast<int>(text.size()), text.data());
  std::abort();
}

InputFile::InputFile(std::string_view bytes) : fd_(memfd_create("input", MFD_CLOEXEC)) {
  const auto written = write(fd_, bytes.data(), bytes.size());
  require(written == static_cast<ssize_t>(bytes.size()), "the input fits a file in memory");
}

InputFile::~InputFile() { close(fd_); }

std::filesystem::path InputFile::path() const { return "/proc/self/fd/" + std::to_string(fd_); }

MemoryLimit::MemoryLimit(std::size_t bytes) {
  require(hooks_installed > 0, "the sanitizer takes hooks for malloc and free");
  allocated = 0;
  limit = static_cast<std::int64_t>(bytes);
}

MemoryLimit::~MemoryLimit() { limit = unlimited; }

}  // namespace lockstep::fuzzing
