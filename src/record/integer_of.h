#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

namespace lockstep::inline v0_2::record {

/// The integral part of a number of the JSON library, or nothing if it is no number or beyond the
/// range of Integer, where a conversion would be undefined.
template <class Integer, class Json>
std::optional<Integer> integer_of(const Json& value) {
  using Limits = std::numeric_limits<Integer>;
  const auto in_range = [](auto number) -> std::optional<Integer> {
    if (!std::in_range<Integer>(number)) return std::nullopt;
    return static_cast<Integer>(number);
  };
  if (value.is_number_unsigned()) return in_range(value.template get<std::uint64_t>());
  if (value.is_number_integer()) return in_range(value.template get<std::int64_t>());
  if (!value.is_number()) return std::nullopt;
  // The first number beyond the range is a power of two; the largest within it may be no double.
  const auto number = value.template get<double>();
  const double beyond = 2 * static_cast<double>(Limits::max() / 2 + 1);
  if (!(number >= static_cast<double>(Limits::min()) && number < beyond)) return std::nullopt;
  return static_cast<Integer>(number);
}

}  // namespace lockstep::record
