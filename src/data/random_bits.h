#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::inline v0_2::detail {

/// Source: splitmix64, as docs/algorithms.md names it
inline std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
  value = (value ^ value >> 27) * 0x94d049bb133111eb;
  return value ^ value >> 31;
}

/// Random bits that vary a sample: the same for every reader and at any time.
inline std::uint64_t bits_of(std::uint64_t seed, std::uint64_t epoch, std::size_t index) {
  return mix(mix(mix(seed) ^ epoch) ^ index);
}

}  // namespace lockstep::detail
