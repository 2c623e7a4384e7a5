#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::inline v0_2::detail {

/// 64 bits that differ, but for bad luck, when the bytes do. No defence against intent. The same on
/// every machine.
/// Source: XXH3, https://xxhash.com
std::uint64_t digest(std::span<const std::byte> bytes);

}  // namespace lockstep::detail
