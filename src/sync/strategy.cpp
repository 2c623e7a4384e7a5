#include "lockstep/strategy.h"

#include <charconv>
#include <variant>

#include "averaging/fields.h"
#include "averaging/parse.h"
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

struct Named {
  std::string_view name;
  std::string_view alias;  ///< SINGA's name, or the name before version 0.2
  Strategy (*parse)(Fields&);
};

/// The strategies that are no averages.
constexpr Named strategies[] = {{"power_sgd", "powersgd", power_sgd},
                                {"partial_update", "partialUpdate", partial_update},
                                {"local_sgd", "", local_sgd},
                                {"post_local_sgd", "", post_local_sgd},
                                {"adasum", "", adasum}};

/// text: "warmup:100:topk:0.01"; options: "100:topk:0.01".
Strategy parse_warmup(std::string_view text, std::string_view options) {
  const auto colon = options.find(':');
  const auto number = options.substr(0, colon);
  std::int64_t steps = 0;
  const auto* end = number.data() + number.size();
  const auto [stopped, error] = std::from_chars(number.data(), end, steps);
  if (colon == std::string_view::npos || error != std::errc() || stopped != end) {
    detail::throw_invalid("strategy", "got \"", text, "\", expected warmup:STEPS:STRATEGY");
  }
  const Warmup recipe{.strategy = parse_strategy(options.substr(colon + 1)), .steps = steps};
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
  const auto colon = text.find(':');
  const auto name = text.substr(0, colon);
  const auto options = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  if (name == "warmup") return parse_warmup(text, options);
  if (const auto average = averaging::parse(name, options)) {
    return std::visit([](const auto& recipe) -> Strategy { return recipe; }, *average);
  }
  std::string valid = averaging::names();
  for (const auto& known : strategies) {
    if (!name.empty() && (name == known.name || name == known.alias)) {
      Fields fields(name, options);
      return known.parse(fields);
    }
    valid += detail::concat(", ", known.name);
  }
  detail::throw_invalid("strategy", "got \"", text, "\", expected one of: ", valid, ", warmup");
}

}  // namespace lockstep
