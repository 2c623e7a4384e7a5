// Loops over one whole chunk of 8-bit codes. Included once for each Highway target.
#if defined(LOCKSTEP_KERNELS_QUANTIZE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_KERNELS_QUANTIZE_INL_H
#undef LOCKSTEP_KERNELS_QUANTIZE_INL_H
#else
#define LOCKSTEP_KERNELS_QUANTIZE_INL_H
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "hwy/highway.h"
#include "kernels/quantize.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::inline v0_2::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Whole = hn::RebindToSigned<Floats>;

/// Factors from values to codes, and from codes to values. Both are zero for a chunk of zeros, and
/// NaN for a chunk with an element that is not finite.
struct Scale {
  float inverse;
  float scale;

  bool is_finite() const { return !std::isnan(scale); }
};

/// The scale of a chunk, from the bits of its largest magnitude. As integers, the bits of Inf and
/// NaN are larger than those of any number.
HWY_INLINE Scale scale_of(std::int32_t largest_bits) {
  constexpr float largest_code = 127;
  // Below this, the inverse would overflow.
  constexpr float least_largest = 0x1p-119f;
  const auto largest = std::bit_cast<float>(largest_bits);
  if (!std::isfinite(largest)) {
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    return {.inverse = nan, .scale = nan};
  }
  if (largest < least_largest) return {.inverse = 0, .scale = 0};
  return {.inverse = largest_code / largest, .scale = largest / largest_code};
}

template <class V>
HWY_INLINE hn::Vec<Whole> magnitude_bits(V v) {
  return hn::And(hn::BitCast(Whole(), v), hn::Set(Whole(), 0x7fffffff));
}

HWY_INLINE std::int32_t largest_of(hn::Vec<Whole> most) {
  return hn::GetLane(hn::MaxOfLanes(Whole(), most));
}

/// The scale of values.
HWY_INLINE Scale measure(const float* values) {
  const Floats d;
  auto most = hn::Zero(Whole());
  for (std::size_t i = 0; i < quantized_chunk; i += hn::Lanes(d)) {
    most = hn::Max(most, magnitude_bits(hn::LoadU(d, values + i)));
  }
  return scale_of(largest_of(most));
}

/// residual += values; returns the scale of residual.
HWY_INLINE Scale add_and_measure(const float* values, float* residual) {
  const Floats d;
  auto most = hn::Zero(Whole());
  for (std::size_t i = 0; i < quantized_chunk; i += hn::Lanes(d)) {
    const auto v = hn::Add(hn::LoadU(d, values + i), hn::LoadU(d, residual + i));
    hn::StoreU(v, d, residual + i);
    most = hn::Max(most, magnitude_bits(v));
  }
  return scale_of(largest_of(most));
}

/// The index of the first element that is not finite, in a chunk that has one.
inline std::size_t first_not_finite(const float* values) {
  const auto* end = values + quantized_chunk;
  return static_cast<std::size_t>(
      std::find_if(values, end, [](float v) { return !std::isfinite(v); }) - values);
}

/// The codes of values, as floats with integral values: rounded to nearest, ties to even.
// The last bit of the sum is 1, so the addition rounds to an integer. Values that round to zero
// become +0, like their codes.
HWY_INLINE hn::Vec<Floats> codes_of(hn::Vec<Floats> values, hn::Vec<Floats> inverse) {
  const auto magic = hn::Set(Floats(), 0x1.8p23f);
  return hn::Sub(hn::Add(hn::Mul(values, inverse), magic), magic);
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
