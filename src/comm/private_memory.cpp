#include "comm/private_memory.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

std::shared_ptr<std::byte> take_private_memory(std::size_t bytes, std::string_view backend) {
  constexpr std::size_t alignment = 64;
  constexpr double mib = 1024.0 * 1024.0;
  const auto machine = static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) *
                       static_cast<std::size_t>(::sysconf(_SC_PAGE_SIZE));
  void* memory = nullptr;
  if (bytes < machine) {
    const std::size_t whole = (bytes + alignment) / alignment * alignment;
    memory = std::aligned_alloc(alignment, whole);
  }
  if (memory == nullptr) {
    throw CommError(concat(backend, ": cannot allocate ", static_cast<double>(bytes) / mib,
                           " MiB of memory; this machine has ", static_cast<double>(machine) / mib,
                           " MiB"));
  }
  std::memset(memory, 0, bytes);
  return {static_cast<std::byte*>(memory), [](std::byte* taken) { std::free(taken); }};
}

}  // namespace lockstep::detail
