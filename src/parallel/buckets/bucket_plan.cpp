#include "parallel/buckets/bucket_plan.h"

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
  return std::ranges::all_of(entries_, &Strategy::exchanges_every_gradient,
                             &ParameterStrategy::strategy);
}

bool ParameterStrategies::take_weights() const {
  return std::ranges::all_of(entries_, &Strategy::takes_weights, &ParameterStrategy::strategy);
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

namespace lockstep::inline v0_2 {
namespace {

bool fits(const PlannedBucket& bucket, const ParameterSpec& parameter, std::size_t cap,
          std::size_t rest) {
  const std::size_t element = c10::elementSize(bucket.dtype);
  const std::size_t begin = round_up(bucket.numel, slice_alignment / element);
  return bucket.numel * element < cap && (begin + parameter.numel) * element <= std::max(cap, rest);
}

void append(PlannedBucket& bucket, std::size_t index, const ParameterSpec& parameter) {
  const std::size_t offset =
      round_up(bucket.numel, slice_alignment / c10::elementSize(bucket.dtype));
  bucket.slices.push_back({.parameter = index, .offset = offset});
  bucket.numel = offset + parameter.numel;
}

/// Removes the small parameters after the last large one from a full bucket and returns them. They
/// may be biases of the next layer, whose later gradients would delay the exchange of the bucket.
/// They make up less than a sixteenth of the bucket.
std::vector<std::size_t> take_tail(PlannedBucket& bucket,
                                   std::span<const ParameterSpec> parameters) {
  constexpr std::size_t small = 16;
  std::size_t kept = bucket.slices.size();
  std::size_t elements = 0;
  for (; kept > 0; --kept) {
    const std::size_t numel = parameters[bucket.slices[kept - 1].parameter].numel;
    if (numel * small >= bucket.numel) break;
    elements += numel;
  }
  if (kept == 0 || elements * small >= bucket.numel) return {};
  std::vector<std::size_t> tail;
  for (auto i = kept; i < bucket.slices.size(); ++i) tail.push_back(bucket.slices[i].parameter);
  bucket.slices.resize(kept);
  const auto& last = bucket.slices.back();
  bucket.numel = last.offset + parameters[last.parameter].numel;
  return tail;
}

}  // namespace

std::vector<PlannedBucket> bucket_plan(std::span<const ParameterSpec> parameters, BucketCaps caps) {
  std::vector<PlannedBucket> plan;
  std::vector<std::size_t> open;  // the bucket that is being filled, for each dtype and strategy
  for (std::size_t index = parameters.size(); index-- > 0;) {
    const auto& parameter = parameters[index];
    auto current = std::ranges::find_if(open, [&](std::size_t candidate) {
      const auto& bucket = plan[candidate];
      return bucket.dtype == parameter.dtype && bucket.strategy == parameter.strategy;
    });
    if (current == open.end()) current = open.insert(open.end(), plan.size());
    const auto begin_another = [&] {
      *current = plan.size();
      plan.push_back({.dtype = parameter.dtype, .strategy = parameter.strategy});
    };
    if (*current == plan.size()) {
      begin_another();
    } else if (!fits(plan[*current], parameter, *current == 0 ? caps.first : caps.rest,
                     caps.rest)) {
      const auto tail = take_tail(plan[*current], parameters);
      begin_another();
      for (const auto small : tail) append(plan.back(), small, parameters[small]);
      if (!tail.empty() && !fits(plan.back(), parameter, caps.rest, caps.rest)) begin_another();
    }
    append(plan[*current], index, parameter);
  }
  // A bucket whose last parameter has a lower index is ready later.
  std::stable_sort(plan.begin(), plan.end(), [](const PlannedBucket& a, const PlannedBucket& b) {
    return a.slices.back().parameter > b.slices.back().parameter;
  });
  return plan;
}

}  // namespace lockstep
