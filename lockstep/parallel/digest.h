#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace lockstep::detail {

/// 64 bits that differ, but for bad luck, when the bytes do. No defence against intent.
/// Source: FNV-1a, taken eight bytes at a time, with a final mix.
inline std::uint64_t digest(std::span<const std::byte> bytes) {
  constexpr std::uint64_t prime = 0x00000100000001b3;
  std::uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&](std::uint64_t word) {
    hash = (hash ^ word) * prime;
    hash ^= hash >> 32;
  };
  std::size_t i = 0;
  for (std::uint64_t word; i + sizeof word <= bytes.size(); i += sizeof word) {
    std::memcpy(&word, bytes.data() + i, sizeof word);
    add(word);
  }
  for (; i < bytes.size(); ++i) add(std::to_integer<std::uint64_t>(bytes[i]));
  add(bytes.size());
  return hash;
}

}  // namespace lockstep::detail
