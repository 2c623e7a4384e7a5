#include "lockstep/comm/hierarchical/slices.h"

#include <algorithm>
#include <cmath>

namespace lockstep::hierarchical {
namespace {

constexpr std::size_t cache_line = 64;

template <class Value>
void scale_all(const Slice& slice, Ratio ratio) {
  const Value factor = static_cast<Value>(ratio.above) / static_cast<Value>(ratio.below);
  auto* values = reinterpret_cast<Value*>(slice.data);
  for (std::size_t i = 0; i < slice.count; ++i) values[i] *= factor;
}

}  // namespace

Slices::Slices(const Operation& operation, int carriers, int local_size) {
  const std::size_t element = size_of(operation.dtype);
  const std::size_t line = cache_line / element;
  const auto parts = static_cast<std::size_t>(carriers);
  const std::size_t share = ((operation.count + parts - 1) / parts + line - 1) / line * line;
  std::size_t begin = 0;
  for (int rank = 0; rank < local_size; ++rank) {
    const std::size_t count = rank < carriers ? std::min(share, operation.count - begin) : 0;
    slices_.push_back({.data = operation.output + begin * element, .count = count});
    begin += count;
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
