#include "plan/planned_strategy.h"

#include <charconv>
#include <cmath>

#include "core/environment.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::plan {
namespace {

using Kind = Strategy::Kind;

struct NamedStrategy {
  Kind kind;
  std::string_view name;
  std::string_view alias;  ///< other name that lockstep::parse_strategy() accepts
  std::string_view field;  ///< name of the option; empty for none
  double least;
  double most;
  std::string_view usual;
};

constexpr NamedStrategy strategies[] = {
    {Kind::fp32, "fp32", "plain", "", 0, 0, ""},
    {Kind::fp16, "fp16", "half", "", 0, 0, ""},
    {Kind::bf16, "bf16", "", "", 0, 0, ""},
    {Kind::topk, "topk", "sparseTopK", "ratio", 1e-9, 1, "0.01"},
    {Kind::int8, "int8", "", "", 0, 0, ""},
    {Kind::power_sgd, "power_sgd", "powersgd", "rank", 1, 1e6, "4"},
    {Kind::local_sgd, "local_sgd", "", "period", 1, 1e9, "8"}};

double value_of(const NamedStrategy& named, std::string_view text, std::string_view given) {
  if (given.starts_with(named.field) && given.substr(named.field.size()).starts_with('=')) {
    given.remove_prefix(named.field.size() + 1);
  }
  const auto value = detail::parse_number<double>(given);
  const bool whole = named.kind != Kind::topk;
  if (!value || !(*value >= named.least && *value <= named.most) ||
      (whole && *value != std::floor(*value))) {
    throw InvalidArgument(
        detail::concat("plan: strategy: got '", text, "', expected ", named.name, ":", named.field,
                       "=", whole ? "a whole number from 1 on" : "a number above 0, at most 1",
                       ", as in ", named.name, ":", named.usual));
  }
  return *value;
}

}  // namespace

Strategy parse_strategy(std::string_view text) {
  const auto colon = text.find(':');
  const auto name = text.substr(0, colon);
  std::string names;
  for (const auto& named : strategies) {
    names += detail::concat(names.empty() ? "" : ", ", named.name);
    if (name.empty() || (name != named.name && name != named.alias)) continue;
    Strategy strategy{.kind = named.kind, .text = std::string(text)};
    const bool given = colon != std::string_view::npos;
    if (named.field.empty()) {
      if (!given) return strategy;
      throw InvalidArgument(detail::concat("plan: strategy: got '", text, "', expected ",
                                           named.name, " with nothing behind it"));
    }
    strategy.value = value_of(named, text, given ? text.substr(colon + 1) : named.usual);
    return strategy;
  }
  throw InvalidArgument(detail::concat("plan: got strategy '", text, "', expected one of ", names,
                                       "; of others the cost depends on the data, or is fp32's"));
}

std::vector<Strategy> usual_strategies() {
  std::vector<Strategy> all;
  for (const auto& named : strategies) {
    const std::string_view colon = named.field.empty() ? "" : ":";
    all.push_back(parse_strategy(detail::concat(named.name, colon, named.usual)));
  }
  return all;
}

}  // namespace lockstep::plan
