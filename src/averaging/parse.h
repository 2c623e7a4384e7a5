#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "core/environment.h"
#include "core/text.h"
#include "lockstep/averages.h"

namespace lockstep::inline v0_2::detail {

/// Parses the options of a strategy's text, such as "0.01,feedback=off" of
/// "topk:0.01,feedback=off". The first option may omit its name. The caller reads each field by
/// name, then calls finish(), which rejects unknown fields.
/// Throws: InvalidArgument with strategy, field, value and what was expected.
class Fields {
 public:
  Fields(std::string_view strategy, std::string_view options);

  /// Sets the value if the field is given.
  template <class Number>
  void read(std::string_view field, Number& value) {
    const auto* text = take(field);
    if (text == nullptr) return;
    const auto given = parse_number<Number>(*text);
    if (!given || !std::isfinite(static_cast<double>(*given)))
      refuse(field, std::same_as<Number, double> ? "a number" : "a whole number");
    value = *given;
  }
  /// The same for "on" or "off".
  void read(std::string_view field, bool& value);
  /// The index of the value among choices.
  std::size_t choice(std::string_view field, std::initializer_list<std::string_view> choices,
                     std::size_t fallback);
  void finish() const;

 private:
  const std::string* take(std::string_view field);
  [[noreturn]] void refuse(std::string_view field, std::string_view expected) const;

  std::string strategy_;
  std::vector<std::pair<std::string, std::string>> given_;
  std::vector<std::string> known_;  ///< names that were read
};

/// When the text of a strategy has an option.
enum class Shown : std::uint8_t {
  if_changed,   ///< where it is not the default
  always,       ///< "rank=4"
  without_name  ///< always, as the first one: "0.01"
};

/// An option of a strategy: its name in texts, and its place in the strategy's struct.
template <class Recipe, class Value>
struct Option {
  std::string_view name;
  Value Recipe::*value;
  Shown shown = Shown::if_changed;
};
template <class Recipe, class Value>
Option(const char*, Value Recipe::*, Shown = {}) -> Option<Recipe, Value>;

/// The options of a strategy, from which its text is written and parsed.
template <class Recipe>
inline constexpr auto options_of = std::tuple();

/// The options of a strategy, by a function that reads all fields: checks that no other field is
/// given, and that the values are in their ranges.
template <class Recipe>
Recipe checked(const Recipe& recipe, const Fields& fields) {
  fields.finish();
  if constexpr (requires { recipe.check(); }) recipe.check();
  return recipe;
}

/// The options of a strategy that options_of describes.
template <class Recipe, class Result = Recipe>
Result parse_options(Fields& fields) {
  Recipe recipe;
  std::apply([&](const auto&... option) { (fields.read(option.name, recipe.*option.value), ...); },
             options_of<Recipe>);
  return checked(recipe, fields);
}

/// The strategy's text form: "topk:0.01,feedback=off".
template <class Recipe>
std::string text_of(std::string_view name, const Recipe& recipe) {
  std::string text(name);
  char separator = ':';
  const auto add = [&](const auto& option) {
    const auto value = recipe.*option.value;
    if (option.shown == Shown::if_changed && value == Recipe{}.*option.value) return;
    (text += std::exchange(separator, ',')) +=
        option.shown == Shown::without_name ? "" : std::string(option.name) + '=';
    if constexpr (std::same_as<decltype(value), const bool>) {
      text += value ? "on" : "off";
    } else if constexpr (std::same_as<decltype(value), const double>) {
      text += shortest(value);
    } else {
      text += std::to_string(value);
    }
  };
  std::apply([&](const auto&... option) { (add(option), ...); }, options_of<Recipe>);
  return text;
}

/// Throws: InvalidArgument such as "topk: got a ratio of 2, expected …", unless holds.
void expect(bool holds, std::string_view strategy, std::string_view field, double got,
            std::string_view expected);

}  // namespace lockstep::detail

namespace lockstep::inline v0_2::averaging {

/// A row of a parse table.
template <class Result>
struct Named {
  std::string_view name;
  std::string_view alias;  ///< SINGA's name, or the name before version 0.2
  Result (*parse)(detail::Fields&);
};

/// Parses a strategy's text, such as "topk:0.01,feedback=off", by a table. nullopt for the name of
/// no row.
/// Throws: InvalidArgument for options that are unknown or out of range.
template <class Result>
std::optional<Result> parse(std::span<const Named<Result>> table, std::string_view text) {
  const auto colon = text.find(':');
  const auto name = text.substr(0, colon);
  for (const auto& known : table) {
    if (name.empty() || (name != known.name && name != known.alias)) continue;
    detail::Fields fields(name, colon == std::string_view::npos ? "" : text.substr(colon + 1));
    return known.parse(fields);
  }
  return std::nullopt;
}

/// The names in a table, for error texts: "fp32, fp16, …".
template <class Result>
std::string names(std::span<const Named<Result>> table) {
  return detail::joined(table, ", ", &Named<Result>::name);
}

/// The options of one of the strategies of averages.h.
using Options = std::variant<AllReduce, Fp16, Bf16, TopK, Threshold, Int8>;

// The same with the table of these strategies.
std::optional<Options> parse(std::string_view text);
std::string names();

}  // namespace lockstep::averaging
