#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/select_largest.h"

namespace lockstep::inline v0_2::averaging {

/// Message layout of selected elements: all values, all indices, zeros up to a multiple of eight
/// bytes.
template <class T>
class SparseRecord {
 public:
  static constexpr std::size_t element_bytes = sizeof(T) + sizeof(std::uint32_t);
  static constexpr std::size_t bytes(std::size_t count) {
    return (count * element_bytes + 7) / 8 * 8;
  }

  /// The record of count picks in memory of at least bytes(count), aligned to eight bytes.
  static kernels::Picks<T> at(std::byte* memory, std::size_t count) {
    return {.indices = {reinterpret_cast<std::uint32_t*>(memory + count * sizeof(T)), count},
            .values = {reinterpret_cast<T*>(memory), count}};
  }
};

/// The index of the first value that is not finite.
template <class T>
std::optional<std::size_t> first_not_finite(std::span<const T> values);

}  // namespace lockstep::averaging
