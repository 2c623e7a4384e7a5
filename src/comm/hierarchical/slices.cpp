#include "comm/hierarchical/slices.h"

#include <cmath>

#include "comm/shape.h"

namespace lockstep::inline v0_2::hierarchical {
namespace {

template <class Value>
void scale_all(const Slice& slice, Ratio ratio) {
  const Value factor = static_cast<Value>(ratio.above) / static_cast<Value>(ratio.below);
  auto* values = reinterpret_cast<Value*>(slice.data);
  for (std::size_t i = 0; i < slice.count; ++i) values[i] *= factor;
}

}  // namespace

Slices::Slices(const Operation& operation, int carriers, int local_size) {
  const std::size_t element = size_of(operation.dtype);
  for (int rank = 0; rank < local_size; ++rank) {
    const auto slice = rank < carriers ? detail::slice_of(operation.count, element, rank, carriers)
                                       : detail::Range{.begin = operation.count, .length = 0};
    slices_.push_back({.data = operation.output + slice.begin * element, .count = slice.length});
  }
}

std::vector<std::size_t> Slices::counts() const {
  std::vector<std::size_t> counts;
  for (const auto& slice : slices_) counts.push_back(slice.count);
  return counts;
}

void clamp(const Slice& slice, float most) {
  if (most == 0) return;
  auto* values = reinterpret_cast<float*>(slice.data);
  for (std::size_t i = 0; i < slice.count; ++i) {
    // NaN stays.
    values[i] = std::fabs(values[i]) > most ? std::copysign(most, values[i]) : values[i];
  }
}

void scale(const Slice& slice, DType dtype, Ratio ratio) {
  if (ratio.above == ratio.below) return;
  if (dtype == DType::f32) {
    scale_all<float>(slice, ratio);
  } else {
    scale_all<double>(slice, ratio);
  }
}

}  // namespace lockstep::hierarchical
