#include "parallel/buckets/parameter_strategies.h"

#include <fnmatch.h>

#include <algorithm>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {
namespace {

bool matches(const ParameterStrategy& entry, const std::string& parameter) {
  return fnmatch(entry.parameters.c_str(), parameter.c_str(), 0) == 0;
}

}  // namespace

ParameterStrategies::ParameterStrategies(const DataParallelOptions& options)
    : entries_{{.parameters = "*", .strategy = options.strategy}} {
  entries_.insert(entries_.end(), options.strategies.begin(), options.strategies.end());
}

std::size_t ParameterStrategies::index_of(const std::string& parameter) const {
  for (std::size_t i = 1; i < entries_.size(); ++i) {
    if (matches(entries_[i], parameter)) return i;
  }
  return 0;
}

bool ParameterStrategies::exchanges_every_gradient() const {
  return std::ranges::all_of(entries_, [](const ParameterStrategy& entry) {
    return entry.strategy.exchanges_every_gradient();
  });
}

std::string ParameterStrategies::text() const {
  auto text = entries_[0].strategy.text();
  for (std::size_t i = 1; i < entries_.size(); ++i) {
    text += concat(", ", entries_[i].parameters, '=', entries_[i].strategy.text());
  }
  return text;
}

void ParameterStrategies::check_patterns(std::span<const NamedTensor> parameters) const {
  for (const auto& entry : entries_) {
    const auto fits = [&](const NamedTensor& named) { return matches(entry, named.name); };
    if (std::ranges::any_of(parameters, fits)) continue;
    throw InvalidArgument(concat("strategies: got the pattern '", entry.parameters,
                                 "', which matches no parameter of the model, expected a pattern "
                                 "of names such as '",
                                 parameters.empty() ? std::string("layer.*") : parameters[0].name,
                                 "'"));
  }
}

}  // namespace lockstep::detail
