#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/types.h"

namespace lockstep::inline v0_2 {

/// Properties of a parameter that decide its bucket.
struct ParameterSpec {
  std::size_t numel = 0;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
};

/// One bucket to be made: which parameters, where.
struct PlannedBucket {
  struct Place {
    std::size_t parameter;  ///< index in the list that was planned
    std::size_t offset;     ///< Units: elements
    bool operator==(const Place&) const = default;
  };

  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  std::size_t numel = 0;  ///< elements of all places and the padding between them
  std::vector<Place> places = {};
};

/// Every place begins at a multiple of this. Units: bytes.
inline constexpr std::size_t place_alignment = 64;

/// Distributes parameters over buckets: in reverse order of registration, about the order in which
/// backward finishes their gradients, never mixing dtypes or devices. Small parameters at the end
/// of a full bucket go to the next one. The buckets come in the order in which their last gradient
/// is expected. A pure function: equal lists give equal plans.
std::vector<PlannedBucket> bucket_plan(std::span<const ParameterSpec> parameters, BucketCaps caps);

}  // namespace lockstep
