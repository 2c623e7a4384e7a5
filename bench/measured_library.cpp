#include "bench/measured_library.h"

#include <algorithm>
#include <new>

namespace lockstep::bench {

std::shared_ptr<std::byte> own_memory(std::size_t bytes) {
  constexpr std::align_val_t page{4096};
  auto* memory = static_cast<std::byte*>(::operator new(bytes, page));
  std::shared_ptr<std::byte> owner(memory, [](std::byte* p) { ::operator delete(p, page); });
  std::fill_n(memory, bytes, std::byte{});
  return owner;
}

}  // namespace lockstep::bench
