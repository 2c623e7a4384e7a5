#include "lockstep/parallel/bucket_plan.h"

#include <algorithm>

namespace lockstep {
namespace {

std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// The bucket being filled for one dtype on one device, by its index in the plan.
struct Open {
  std::size_t bucket;
  std::size_t cap;
};

bool fits(const PlannedBucket& bucket, const ParameterSpec& parameter, std::size_t cap) {
  const std::size_t element = c10::elementSize(bucket.dtype);
  const std::size_t begin = round_up(bucket.numel, place_alignment / element);
  return (begin + parameter.numel) * element <= cap;
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
    if (current->bucket == plan.size() || !fits(plan[current->bucket], parameter, current->cap)) {
      *current = {.bucket = plan.size(), .cap = plan.empty() ? caps.first : caps.rest};
      plan.push_back({.dtype = parameter.dtype, .device = parameter.device});
    }
    auto& bucket = plan[current->bucket];
    const std::size_t offset =
        round_up(bucket.numel, place_alignment / c10::elementSize(bucket.dtype));
    bucket.places.push_back({.parameter = index, .offset = offset});
    bucket.numel = offset + parameter.numel;
  }
  // The lower its last parameter's index, the later a bucket is ready.
  std::stable_sort(plan.begin(), plan.end(), [](const PlannedBucket& a, const PlannedBucket& b) {
    return a.places.back().parameter > b.places.back().parameter;
  });
  return plan;
}

}  // namespace lockstep
