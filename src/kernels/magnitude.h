#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace lockstep::inline v0_2::detail {

/// The integer type of magnitudes of T.
template <class T>
using Magnitude = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

template <class T>
inline constexpr auto infinite_magnitude =
    std::bit_cast<Magnitude<T>>(std::numeric_limits<T>::infinity());

/// An integer that orders values by magnitude. Denormals are not flushed, Inf is above all numbers,
/// and all NaN are equal and above Inf.
template <class T>
constexpr Magnitude<T> magnitude(T value) {
  const auto bits = std::bit_cast<Magnitude<T>>(value);
  const auto sign = Magnitude<T>{1} << (sizeof(T) * 8 - 1);
  return std::min<Magnitude<T>>(bits & ~sign, infinite_magnitude<T> + 1);
}

}  // namespace lockstep::detail
