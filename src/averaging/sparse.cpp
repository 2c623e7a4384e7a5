#include "averaging/sparse.h"

#include <algorithm>
#include <cmath>

namespace lockstep::inline v0_2::averaging {

template <class T>
std::optional<std::size_t> first_not_finite(std::span<const T> values) {
  const auto found =
      std::find_if(values.begin(), values.end(), [](T value) { return !std::isfinite(value); });
  if (found == values.end()) return std::nullopt;
  return static_cast<std::size_t>(found - values.begin());
}

template std::optional<std::size_t> first_not_finite<float>(std::span<const float>);
template std::optional<std::size_t> first_not_finite<double>(std::span<const double>);

}  // namespace lockstep::averaging
