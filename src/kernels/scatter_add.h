#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::inline v0_2::kernels {

/// data[indices[i]] += scale · values[i], one after another. Every index must lie within data.
template <class T>
void scatter_add(std::span<T> data, std::span<const std::uint32_t> indices,
                 std::span<const T> values, T scale) {
  for (std::size_t i = 0; i < indices.size(); ++i) data[indices[i]] += scale * values[i];
}

}  // namespace lockstep::kernels
