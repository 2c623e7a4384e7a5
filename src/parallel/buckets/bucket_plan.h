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
  std::size_t strategy = 0;  ///< parameters of different strategies have different buckets
};

/// The layout of a bucket that is not allocated yet.
struct PlannedBucket {
  struct Slice {
    std::size_t parameter;  ///< index in the list passed to bucket_plan()
    std::size_t offset;     ///< Units: elements
    bool operator==(const Slice&) const = default;
  };

  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  std::size_t strategy = 0;
  std::size_t numel = 0;  ///< elements of all slices and the padding between them
  std::vector<Slice> slices = {};
};

/// Every slice begins at a multiple of this. Units: bytes.
inline constexpr std::size_t slice_alignment = 64;

/// Distributes parameters over buckets in reverse order of registration, which is roughly the order
/// in which a backward computes their gradients. A bucket has one dtype, device and strategy. Small
/// parameters at the end of a full bucket move to the next one. Buckets are sorted by the expected
/// time of their last gradient. Equal arguments give equal plans.
std::vector<PlannedBucket> bucket_plan(std::span<const ParameterSpec> parameters, BucketCaps caps);

}  // namespace lockstep
