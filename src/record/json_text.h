#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

/// A value of a flat JSON object: a number, or null, which stands for what is no number.
struct JsonNumber {
  double value;
  std::optional<std::int64_t> whole;  ///< the same, where it is a whole number
};

/// The numbers and nulls of a JSON object in their order, without what is nested or no number. None
/// where the text is no object. The time is linear in the text, whatever it holds.
std::optional<std::vector<std::pair<std::string, JsonNumber>>> flat_numbers(std::string_view text);

/// The names of a JSON object in their order, each with those of the object that it names.
using JsonNames = std::vector<std::pair<std::string, std::vector<std::string>>>;
std::optional<JsonNames> names_in_order(std::string_view text);

/// The content of a regular file; none where there is no such file. Nothing else is opened: a fifo
/// would wait for its writer.
std::optional<std::string> regular_file(const std::filesystem::path& path);

}  // namespace lockstep::record
