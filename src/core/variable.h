#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace lockstep::inline v0_2::detail {

/// The value of the environment variable; an empty one counts as unset.
std::optional<std::string_view> variable(const char* name);

/// The number that all of the text is, if it is one.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// The variable's whole number. Throws: InvalidArgument when it holds anything else or less.
std::optional<int> integer_variable(const char* name, int least);

}  // namespace lockstep::detail
