#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::inline v0_2::detail {

/// A 64-bit hash, the same on every machine. Not cryptographic.
/// Source: XXH3, https://xxhash.com
std::uint64_t digest(std::span<const std::byte> bytes);

}  // namespace lockstep::detail
