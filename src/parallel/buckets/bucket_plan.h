#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data_parallel_options.h"
#include "lockstep/model_view.h"
#include "lockstep/strategy.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::detail {

/// The strategies of a wrapper: one for all parameters, and others for those whose names match a
/// pattern.
class ParameterStrategies {
 public:
  explicit ParameterStrategies(const DataParallelOptions& options);

  /// The index of a parameter's strategy; 0 for the one of all parameters without another.
  std::size_t index_of(const std::string& parameter) const;
  const Strategy& operator[](std::size_t index) const { return entries_[index].strategy; }
  std::size_t size() const { return entries_.size(); }

  /// Whether every step exchanges the gradients of every parameter, and no step exchanges
  /// parameters.
  bool exchanges_every_gradient() const;
  /// Whether every strategy takes weights.
  bool take_weights() const;
  /// "fp32", or "fp32, embedding.*=topk:0.01".
  std::string text() const;

  /// Throws: InvalidArgument for a pattern that matches none of these.
  void check_patterns(std::span<const NamedTensor> parameters) const;

 private:
  /// The first has the pattern of all names, and is searched last.
  std::vector<ParameterStrategy> entries_;
};

}  // namespace lockstep::detail

namespace lockstep::inline v0_2 {

/// Properties of a parameter that decide its bucket.
struct ParameterSpec {
  std::size_t numel = 0;
  at::ScalarType dtype = at::kFloat;
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
  std::size_t strategy = 0;
  std::size_t numel = 0;  ///< elements of all slices and the padding between them
  std::vector<Slice> slices = {};
};

/// Every slice begins at a multiple of this. Units: bytes.
inline constexpr std::size_t slice_alignment = 64;

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Distributes parameters over buckets in reverse order of registration, which is roughly the order
/// in which a backward computes their gradients. A bucket has one dtype and strategy. Small
/// parameters at the end of a full bucket move to the next one. Buckets are sorted by the expected
/// time of their last gradient. Equal arguments give equal plans.
std::vector<PlannedBucket> bucket_plan(std::span<const ParameterSpec> parameters, BucketCaps caps);

}  // namespace lockstep
