#include "core/numeric/digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lockstep::inline v0_2::detail {

std::uint64_t digest(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace lockstep::detail
