#include "lockstep/strategy.h"

#include <variant>

#include "averaging/parse.h"
#include "core/environment.h"
#include "core/operation_error.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/strategies.h"

namespace lockstep::inline v0_2 {
namespace {

using detail::Fields;

Strategy power_sgd(Fields& fields) {
  PowerSgd recipe;
  recipe.rank = fields.whole("rank", recipe.rank);
  recipe.error_feedback = fields.flag("feedback", recipe.error_feedback);
  recipe.warm_start = fields.flag("warm_start", recipe.warm_start);
  return detail::checked(recipe, fields);
}

/// What partial_update and adasum exchange.
SyncTarget target(Fields& fields) {
  return fields.choice("of", {"parameters", "gradients"}, 0) == 1 ? SyncTarget::gradients
                                                                  : SyncTarget::parameters;
}

Strategy partial_update(Fields& fields) {
  return detail::checked(PartialUpdate{.of = target(fields)}, fields);
}

Strategy local_sgd(Fields& fields) {
  LocalSgd recipe;
  recipe.period = fields.whole("period", recipe.period);
  return detail::checked(recipe, fields);
}

Strategy post_local_sgd(Fields& fields) {
  PostLocalSgd recipe;
  recipe.start = fields.whole("start", recipe.start);
  recipe.period = fields.whole("period", recipe.period);
  return detail::checked(recipe, fields);
}

Strategy adasum(Fields& fields) { return detail::checked(Adasum{.of = target(fields)}, fields); }

/// The strategies that are no averages.
constexpr averaging::Named<Strategy> strategies[] = {
    {"power_sgd", "powersgd", power_sgd},
    {"partial_update", "partialUpdate", partial_update},
    {"local_sgd", "", local_sgd},
    {"post_local_sgd", "", post_local_sgd},
    {"adasum", "", adasum}};

/// text: "warmup:100:topk:0.01".
Strategy parse_warmup(std::string_view text) {
  const auto first = text.find(':') + 1;
  const auto second = text.find(':', first);
  const auto steps = detail::parse_number<std::int64_t>(text.substr(first, second - first));
  if (second == std::string_view::npos || !steps) {
    detail::throw_invalid("strategy", "got \"", text, "\", expected warmup:STEPS:STRATEGY");
  }
  const Warmup recipe{.strategy = parse_strategy(text.substr(second + 1)), .steps = *steps};
  recipe.check();
  return recipe;
}

}  // namespace

Strategy parse_strategy(std::string_view text) {
  // Limits the recursion of nested warm-ups.
  constexpr std::size_t max_length = 4096;
  if (text.size() > max_length) {
    detail::throw_invalid("strategy", "got ", text.size(), " characters, expected at most ",
                          max_length);
  }
  if (text.substr(0, text.find(':')) == "warmup") return parse_warmup(text);
  if (const auto average = averaging::parse(text)) {
    return std::visit([](const auto& recipe) -> Strategy { return recipe; }, *average);
  }
  if (auto parsed = averaging::parse<Strategy>(strategies, text)) return *parsed;
  detail::throw_invalid("strategy", "got \"", text, "\", expected one of: ", averaging::names(),
                        ", ", averaging::names<Strategy>(strategies), ", warmup");
}

}  // namespace lockstep
