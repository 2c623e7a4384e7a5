#include "averaging/parse.h"

#include <algorithm>
#include <cmath>

#include "core/environment.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

Fields::Fields(std::string_view strategy, std::string_view options) : strategy_(strategy) {
  while (!options.empty()) {
    const auto comma = options.find(',');
    const auto option = options.substr(0, comma);
    options = comma == std::string_view::npos ? "" : options.substr(comma + 1);
    const auto equals = option.find('=');
    if (equals != std::string_view::npos) {
      given_.emplace_back(option.substr(0, equals), option.substr(equals + 1));
    } else {
      given_.emplace_back("", option);
    }
  }
}

const std::string* Fields::take(std::string_view field) {
  // Only the field that is read first may omit its name.
  const bool may_omit_name = known_.empty();
  known_.emplace_back(field);
  const std::string* found = nullptr;
  for (std::size_t i = 0; i < given_.size(); ++i) {
    auto& [name, value] = given_[i];
    if (name.empty() && i == 0 && may_omit_name) name = field;
    if (name != field) continue;
    if (found != nullptr) refuse(field, "the field only once");
    found = &value;
  }
  return found;
}

void Fields::refuse(std::string_view field, std::string_view expected) const {
  std::string got;
  for (const auto& [name, value] : given_) {
    if (name == field) got = value;
  }
  throw InvalidArgument(
      concat("strategy ", strategy_, ": got ", field, "=", got, ", expected ", expected));
}

double Fields::real(std::string_view field, double fallback) {
  const auto* text = take(field);
  if (text == nullptr) return fallback;
  const auto value = parse_number<double>(*text);
  if (!value || !std::isfinite(*value)) refuse(field, "a number");
  return *value;
}

std::int64_t Fields::whole(std::string_view field, std::int64_t fallback) {
  const auto* text = take(field);
  if (text == nullptr) return fallback;
  const auto value = parse_number<std::int64_t>(*text);
  if (!value) refuse(field, "a whole number");
  return *value;
}

bool Fields::flag(std::string_view field, bool fallback) {
  return choice(field, {"off", "on"}, fallback ? 1 : 0) == 1;
}

std::size_t Fields::choice(std::string_view field, std::initializer_list<std::string_view> choices,
                           std::size_t fallback) {
  const auto* text = take(field);
  if (text == nullptr) return fallback;
  const auto* found = std::find(choices.begin(), choices.end(), *text);
  if (found != choices.end()) return static_cast<std::size_t>(found - choices.begin());
  std::string expected;
  for (const auto valid : choices) expected += concat(expected.empty() ? "" : " or ", valid);
  refuse(field, expected);
}

void Fields::finish() const {
  for (const auto& [name, value] : given_) {
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    std::string valid;
    for (const auto& field : known_) valid += concat(valid.empty() ? "" : ", ", field);
    throw InvalidArgument(concat("strategy ", strategy_, ": got field \"",
                                 name.empty() ? value : name, "\", expected ",
                                 valid.empty() ? "no options" : "one of: " + valid));
  }
}

void expect(bool holds, std::string_view strategy, std::string_view field, double got,
            std::string_view expected) {
  if (holds) return;
  throw InvalidArgument(
      concat(strategy, ": got a ", field, " of ", shortest(got), ", expected ", expected));
}

}  // namespace lockstep::detail

namespace lockstep::inline v0_2::averaging {
namespace {

using detail::checked;
using detail::Fields;

Options fp32(Fields& fields) { return checked(AllReduce{}, fields); }

Options fp16(Fields& fields) {
  Fp16 recipe;
  recipe.clip = fields.real("clip", recipe.clip);
  recipe.predivide = fields.flag("predivide", recipe.predivide);
  return checked(recipe, fields);
}

Options bf16(Fields& fields) { return checked(Bf16{}, fields); }

Options top_k(Fields& fields) {
  TopK recipe;
  recipe.ratio = fields.real("ratio", recipe.ratio);
  recipe.error_feedback = fields.flag("feedback", recipe.error_feedback);
  recipe.ramp = fields.whole("ramp", recipe.ramp);
  return checked(recipe, fields);
}

Options threshold(Fields& fields) {
  Threshold recipe;
  recipe.value = fields.real("value", recipe.value);
  recipe.error_feedback = fields.flag("feedback", recipe.error_feedback);
  return checked(recipe, fields);
}

Options int8(Fields& fields) {
  Int8 recipe;
  recipe.error_feedback = fields.flag("feedback", recipe.error_feedback);
  return checked(recipe, fields);
}

constexpr Named<Options> strategies[] = {{"fp32", "plain", fp32},
                                         {"fp16", "half", fp16},
                                         {"bf16", "", bf16},
                                         {"topk", "sparseTopK", top_k},
                                         {"threshold", "sparseThreshold", threshold},
                                         {"int8", "", int8}};

}  // namespace

std::optional<Options> parse(std::string_view text) { return parse<Options>(strategies, text); }

std::string names() { return names<Options>(strategies); }

}  // namespace lockstep::averaging
