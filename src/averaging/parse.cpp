#include "averaging/parse.h"

#include <algorithm>
#include <limits>

#include "core/text.h"
#include "kernels/select_largest.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

Fields::Fields(std::string_view strategy, std::string_view options) : strategy_(strategy) {
  for (const auto& option : lines_in(std::string(options), ',')) {
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

void Fields::read(std::string_view field, bool& value) {
  value = choice(field, {"off", "on"}, value ? 1 : 0) == 1;
}

std::size_t Fields::choice(std::string_view field, std::initializer_list<std::string_view> choices,
                           std::size_t fallback) {
  const auto* text = take(field);
  if (text == nullptr) return fallback;
  const auto* found = std::find(choices.begin(), choices.end(), *text);
  if (found != choices.end()) return static_cast<std::size_t>(found - choices.begin());
  refuse(field, joined(choices, " or "));
}

void Fields::finish() const {
  for (const auto& [name, value] : given_) {
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    const auto valid = joined(known_, ", ");
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

template <>
constexpr auto options_of<Fp16> = std::tuple(Option{"clip", &Fp16::clip},
                                             Option{"predivide", &Fp16::predivide});
template <>
constexpr auto options_of<TopK> = std::tuple(Option{"ratio", &TopK::ratio, Shown::without_name},
                                             Option{"feedback", &TopK::error_feedback},
                                             Option{"ramp", &TopK::ramp});
template <>
constexpr auto options_of<Threshold> = std::tuple(Option{"value", &Threshold::value,
                                                         Shown::without_name},
                                                  Option{"feedback", &Threshold::error_feedback});
template <>
constexpr auto options_of<Int8> = std::tuple(Option{"feedback", &Int8::error_feedback});

}  // namespace lockstep::detail

namespace lockstep::inline v0_2 {

using detail::expect;

std::string Fp16::text() const { return detail::text_of("fp16", *this); }

void Fp16::check() const {
  // A clip that rounds to 0 in float32 would disable clipping. magnitude() compares denormals even
  // where they are flushed.
  const bool rounds_to_zero = detail::magnitude(clip) > 0 && static_cast<float>(clip) == 0;
  expect(clip >= 0 && clip <= std::numeric_limits<float>::max() && !rounds_to_zero, "fp16", "clip",
         clip, "0 for no clipping, or a positive float32 number");
}

std::string TopK::text() const { return detail::text_of("topk", *this); }

void TopK::check() const {
  expect(ratio > 0 && ratio <= 1, "topk", "ratio", ratio, "more than 0 and at most 1");
  expect(ramp >= 0, "topk", "ramp", static_cast<double>(ramp), "0 or more steps");
}

std::string Threshold::text() const { return detail::text_of("threshold", *this); }

void Threshold::check() const { expect(value >= 0, "threshold", "value", value, "0 or more"); }

}  // namespace lockstep

namespace lockstep::inline v0_2::averaging {
namespace {

using detail::parse_options;

constexpr Named<Options> strategies[] = {
    {"fp32", "plain", parse_options<AllReduce, Options>},
    {"fp16", "half", parse_options<Fp16, Options>},
    {"bf16", "", parse_options<Bf16, Options>},
    {"topk", "sparseTopK", parse_options<TopK, Options>},
    {"threshold", "sparseThreshold", parse_options<Threshold, Options>},
    {"int8", "", parse_options<Int8, Options>}};

}  // namespace

std::optional<Options> parse(std::string_view text) { return parse<Options>(strategies, text); }

std::string names() { return names<Options>(strategies); }

}  // namespace lockstep::averaging
