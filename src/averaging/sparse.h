#pragma once

#include <algorithm>
#include <cmath>
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
std::optional<std::size_t> first_not_finite(std::span<const T> values) {
  const auto found =
      std::find_if(values.begin(), values.end(), [](T value) { return !std::isfinite(value); });
  if (found == values.end()) return std::nullopt;
  return static_cast<std::size_t>(found - values.begin());
}

/// Sets elements of a residual that are not finite to zero. Otherwise a rejected gradient would be
/// sent at the next step.
template <class T>
void drop_not_finite(std::span<T> residual) {
  std::replace_if(
      residual.begin(), residual.end(), [](T value) { return !std::isfinite(value); }, T{0});
}

}  // namespace lockstep::averaging
