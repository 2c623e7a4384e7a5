#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::inline v0_2::detail {

/// The mixing function of splitmix64. Source: docs/algorithms.md
inline std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
  value = (value ^ value >> 27) * 0x94d049bb133111eb;
  return value ^ value >> 31;
}

/// Random bits of a sample in an epoch. Equal arguments give equal bits, in every reader thread.
inline std::uint64_t bits_of(std::uint64_t seed, std::uint64_t epoch, std::size_t index) {
  return mix(mix(mix(seed) ^ epoch) ^ index);
}

}  // namespace lockstep::detail
