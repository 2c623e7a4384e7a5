// Conversion between vectors of 16-bit floats ("halves": f16 or bf16) and f32, bit-exact on every
// target. Included once for each Highway target.
#if defined(LOCKSTEP_KERNELS_HALF_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_KERNELS_HALF_INL_H
#undef LOCKSTEP_KERNELS_HALF_INL_H
#else
#define LOCKSTEP_KERNELS_HALF_INL_H
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::inline v0_2::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class DF>
using HalfTag = hn::Rebind<std::uint16_t, DF>;
template <class DF>
using BitsTag = hn::RebindToUnsigned<DF>;

/// The low 16 bits of each vector element.
template <class DF>
HWY_INLINE hn::Vec<HalfTag<DF>> low_halves(DF, hn::Vec<BitsTag<DF>> bits) {
  const hn::RebindToSigned<DF> signed_tag;
  return hn::DemoteTo(HalfTag<DF>(), hn::BitCast(signed_tag, bits));
}

template <class DF>
HWY_INLINE hn::Vec<DF> bf16_to_f32(DF d, hn::Vec<HalfTag<DF>> halves) {
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(BitsTag<DF>(), halves)));
}

/// The nearest bf16 of each value, ties to even, in the upper half of each 32-bit element. The
/// lower half is undefined.
// Highway 1.0.3 truncates, and the processor's instruction flushes denormals. Therefore this rounds
// with integers.
template <class DF>
HWY_INLINE hn::Vec<BitsTag<DF>> round_to_bf16(DF d, hn::Vec<DF> values) {
  const BitsTag<DF> u;
  const auto bits = hn::BitCast(u, values);
  const auto is_odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1));
  const auto rounded = hn::Add(bits, hn::Add(hn::Set(u, 0x7fff), is_odd));
  const auto quiet_nan = hn::Or(bits, hn::Set(u, 0x400000));
  return hn::BitCast(
      u, hn::IfThenElse(hn::IsNaN(values), hn::BitCast(d, quiet_nan), hn::BitCast(d, rounded)));
}

template <class DF>
HWY_INLINE hn::Vec<HalfTag<DF>> f32_to_bf16(DF d, hn::Vec<DF> values) {
  return low_halves(d, hn::ShiftRight<16>(round_to_bf16(d, values)));
}

/// Loads two vectors of bf16 and separates even and odd elements, which needs no shuffle.
template <class DF>
HWY_INLINE void load_bf16_pair(DF d, const std::uint16_t* from, hn::Vec<DF>& even,
                               hn::Vec<DF>& odd) {
  const BitsTag<DF> u;
  const auto pairs = hn::BitCast(u, hn::LoadU(hn::Repartition<std::uint16_t, DF>(), from));
  even = hn::BitCast(d, hn::ShiftLeft<16>(pairs));
  odd = hn::BitCast(d, hn::And(pairs, hn::Set(u, 0xffff0000)));
}

template <class DF>
HWY_INLINE void store_bf16_pair(DF d, hn::Vec<DF> even, hn::Vec<DF> odd, std::uint16_t* to) {
  const BitsTag<DF> u;
  const auto low = hn::ShiftRight<16>(round_to_bf16(d, even));
  const auto high = hn::And(round_to_bf16(d, odd), hn::Set(u, 0xffff0000));
  const hn::Repartition<std::uint16_t, DF> halves;
  hn::StoreU(hn::BitCast(halves, hn::Or(low, high)), halves, to);
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || \
    HWY_TARGET == HWY_NEON

// These targets convert in hardware: to nearest even; denormals, Inf and NaN are kept.
template <class DF>
HWY_INLINE hn::Vec<DF> f16_to_f32(DF d, hn::Vec<HalfTag<DF>> halves) {
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, DF>(), halves));
}

template <class DF>
HWY_INLINE hn::Vec<HalfTag<DF>> f32_to_f16(DF, hn::Vec<DF> values) {
  return hn::BitCast(HalfTag<DF>(), hn::DemoteTo(hn::Rebind<hwy::float16_t, DF>(), values));
}

#else

// Highway 1.0.3's emulation loses Inf and NaN and truncates.
template <class DF>
HWY_INLINE hn::Vec<DF> f16_to_f32(DF d, hn::Vec<HalfTag<DF>> halves) {
  const BitsTag<DF> u;
  const auto bits = hn::PromoteTo(u, halves);
  const auto magnitude = hn::And(bits, hn::Set(u, 0x7fff));
  // After the shift, the exponent lacks the difference of the biases, 127 - 15.
  const auto shifted = hn::ShiftLeft<13>(magnitude);
  const auto normal = hn::Add(shifted, hn::Set(u, 112U << 23));
  // The last bit of a denormal half is 2^-24, like the last bit of a half in [2^-14, 2^-13). The
  // mantissa added to 2^-14 is therefore a normal f32, and subtracting 2^-14 is exact. No operand
  // is a denormal f32, which the thread might flush.
  const auto least_normal = hn::Set(u, 113U << 23);
  const auto denormal = hn::BitCast(
      u, hn::Sub(hn::BitCast(d, hn::Add(shifted, least_normal)), hn::BitCast(d, least_normal)));
  const auto is_denormal = hn::Lt(magnitude, hn::Set(u, 0x400));
  const auto finite = hn::IfThenElse(is_denormal, denormal, normal);
  const auto is_special = hn::Gt(magnitude, hn::Set(u, 0x7bff));
  const auto exponent = hn::IfThenElseZero(is_special, hn::Set(u, 0x7f800000));
  const auto sign = hn::ShiftLeft<16>(hn::Xor(bits, magnitude));
  return hn::BitCast(d, hn::Or(hn::Or(finite, exponent), sign));
}

template <class DF>
HWY_INLINE hn::Vec<HalfTag<DF>> f32_to_f16(DF d, hn::Vec<DF> values) {
  const BitsTag<DF> u;
  const auto bits = hn::BitCast(u, values);
  const auto magnitude = hn::And(bits, hn::Set(u, 0x7fffffff));
  const auto sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));

  const auto is_odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(u, 1));
  const auto rebias = hn::Set(u, 0xfffU - (112U << 23));
  const auto normal = hn::ShiftRight<13>(hn::Add(magnitude, hn::Add(rebias, is_odd)));

  // Adding 1/2 aligns the last bit of a denormal half with that of the sum, so that the addition
  // rounds.
  const auto half = hn::Set(d, 0.5f);
  const auto denormal =
      hn::Sub(hn::BitCast(u, hn::Add(hn::BitCast(d, magnitude), half)), hn::BitCast(u, half));

  const auto is_denormal = hn::Lt(magnitude, hn::Set(u, 113U << 23));
  const auto is_large = hn::Gt(magnitude, hn::Set(u, (143U << 23) - 1));
  const auto is_nan = hn::Gt(magnitude, hn::Set(u, 0x7f800000));
  const auto special = hn::IfThenElse(is_nan, hn::Set(u, 0x7e00), hn::Set(u, 0x7c00));
  const auto finite = hn::IfThenElse(is_denormal, denormal, normal);
  return low_halves(d, hn::Or(hn::IfThenElse(is_large, special, finite), sign));
}

#endif

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
