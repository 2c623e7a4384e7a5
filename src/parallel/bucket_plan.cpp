#include "parallel/bucket_plan.h"

#include <algorithm>

namespace lockstep::inline v0_2 {
namespace {

std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// The bucket being filled for one dtype on one device, by its index in the plan.
struct Open {
  std::size_t bucket;
  std::size_t enough;  ///< once it has them, it is full. Units: bytes
};

bool fits(const PlannedBucket& bucket, const ParameterSpec& parameter, std::size_t enough,
          std::size_t rest) {
  const std::size_t element = c10::elementSize(bucket.dtype);
  const std::size_t begin = round_up(bucket.numel, place_alignment / element);
  return bucket.numel * element < enough &&
         (begin + parameter.numel) * element <= std::max(enough, rest);
}

void append(PlannedBucket& bucket, std::size_t index, const ParameterSpec& parameter) {
  const std::size_t offset =
      round_up(bucket.numel, place_alignment / c10::elementSize(bucket.dtype));
  bucket.places.push_back({.parameter = index, .offset = offset});
  bucket.numel = offset + parameter.numel;
}

/// Takes the small parameters behind the last large one out of a full bucket, if there are any.
/// They are, say, biases of the layer that comes next, whose gradients would delay those of the
/// large parameters. The small parameters make up less than a sixteenth of the bucket.
std::vector<std::size_t> take_tail(PlannedBucket& bucket,
                                   std::span<const ParameterSpec> parameters) {
  constexpr std::size_t small = 16;
  std::size_t kept = bucket.places.size();
  std::size_t elements = 0;
  for (; kept > 0; --kept) {
    const std::size_t numel = parameters[bucket.places[kept - 1].parameter].numel;
    if (numel * small >= bucket.numel) break;
    elements += numel;
  }
  if (kept == 0 || elements * small >= bucket.numel) return {};
  std::vector<std::size_t> tail;
  for (auto i = kept; i < bucket.places.size(); ++i) tail.push_back(bucket.places[i].parameter);
  bucket.places.resize(kept);
  const auto& last = bucket.places.back();
  bucket.numel = last.offset + parameters[last.parameter].numel;
  return tail;
}

}  // namespace

std::vector<PlannedBucket> bucket_plan(std::span<const ParameterSpec> parameters, BucketCaps caps) {
  std::vector<PlannedBucket> plan;
  std::vector<Open> open;
  for (std::size_t index = parameters.size(); index-- > 0;) {
    const auto& parameter = parameters[index];
    auto current = std::find_if(open.begin(), open.end(), [&](const Open& candidate) {
      const auto& bucket = plan[candidate.bucket];
      return bucket.dtype == parameter.dtype && bucket.device == parameter.device;
    });
    if (current == open.end()) current = open.insert(open.end(), {plan.size(), 0});
    const auto begin_another = [&] {
      *current = {.bucket = plan.size(), .enough = plan.empty() ? caps.first : caps.rest};
      plan.push_back({.dtype = parameter.dtype, .device = parameter.device});
    };
    if (current->bucket == plan.size()) {
      begin_another();
    } else if (!fits(plan[current->bucket], parameter, current->enough, caps.rest)) {
      const auto tail = take_tail(plan[current->bucket], parameters);
      begin_another();
      for (const auto small : tail) append(plan.back(), small, parameters[small]);
      if (!tail.empty() && !fits(plan.back(), parameter, current->enough, caps.rest))
        begin_another();
    }
    append(plan[current->bucket], index, parameter);
  }
  // The lower its last parameter's index, the later a bucket is ready.
  std::stable_sort(plan.begin(), plan.end(), [](const PlannedBucket& a, const PlannedBucket& b) {
    return a.places.back().parameter > b.places.back().parameter;
  });
  return plan;
}

}  // namespace lockstep
