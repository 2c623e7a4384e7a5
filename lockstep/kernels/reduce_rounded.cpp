#include "lockstep/kernels/reduce_rounded.h"

#include <cstdint>
#include <cstring>
#include <limits>

#include "lockstep/core/error.h"
#include "lockstep/core/text.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lockstep/kernels/reduce_rounded.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "lockstep/kernels/half-inl.h"

#ifndef LOCKSTEP_KERNELS_ROUNDING
#define LOCKSTEP_KERNELS_ROUNDING
namespace lockstep::kernels {
namespace {

/// What is done to an element before it is added, and to the sum.
struct Rounding {
  float limit;
  float before;
  float after;
};

}  // namespace
}  // namespace lockstep::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {

template <bool kIsBf16, class D>
HWY_INLINE hn::Vec<D> rounded(D d, hn::Vec<D> values, const Rounding& rounding) {
  const auto limit = hn::Set(d, rounding.limit);
  const auto magnitude = hn::Abs(values);
  // Not Min: NaN shall stay.
  const auto over = hn::Gt(magnitude, limit);
  values = hn::IfThenElse(over, hn::CopySign(limit, values), values);
  values = hn::Mul(values, hn::Set(d, rounding.before));
  if constexpr (kIsBf16) {
    const BitsTag<D> u;
    return hn::BitCast(d, hn::And(round_to_bf16(d, values), hn::Set(u, 0xffff0000)));
  } else {
    return f16_to_f32(d, f32_to_f16(d, values));
  }
}

template <bool kIsBf16>
void reduce_vectors(const Rounding& rounding, std::span<const std::byte* const> inputs,
                    std::span<std::byte* const> outputs, std::size_t count) {
  const hn::ScalableTag<float> d;
  const std::size_t step = hn::Lanes(d) * sizeof(float);
  const std::size_t end = count * sizeof(float);
  const auto load = [&](const std::byte* from) {
    return rounded<kIsBf16>(d, hn::LoadU(d, reinterpret_cast<const float*>(from)), rounding);
  };
  const auto after = hn::Set(d, rounding.after);

  std::size_t at = 0;
  for (; end - at >= 2 * step; at += 2 * step) {
    auto v0 = load(inputs[0] + at);
    auto v1 = load(inputs[0] + at + step);
    for (std::size_t i = 1; i < inputs.size(); ++i) {
      v0 = hn::Add(v0, load(inputs[i] + at));
      v1 = hn::Add(v1, load(inputs[i] + at + step));
    }
    v0 = hn::Mul(v0, after);
    v1 = hn::Mul(v1, after);
    for (std::byte* output : outputs) {
      hn::StoreU(v0, d, reinterpret_cast<float*>(output + at));
      hn::StoreU(v1, d, reinterpret_cast<float*>(output + at + step));
    }
  }

  // The rest through a buffer of one vector, the last perhaps short.
  HWY_ALIGN std::byte lanes[HWY_MAX_BYTES] = {};
  for (; at < end; at += step) {
    const std::size_t bytes = end - at < step ? end - at : step;
    auto sum = hn::Zero(d);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      std::memcpy(lanes, inputs[i] + at, bytes);
      sum = i == 0 ? load(lanes) : hn::Add(sum, load(lanes));
    }
    hn::StoreU(hn::Mul(sum, after), d, reinterpret_cast<float*>(lanes));
    for (std::byte* output : outputs) std::memcpy(output + at, lanes, bytes);
  }
}

void reduce_f16(const Rounding& rounding, std::span<const std::byte* const> inputs,
                std::span<std::byte* const> outputs, std::size_t count) {
  reduce_vectors<false>(rounding, inputs, outputs, count);
}

void reduce_bf16(const Rounding& rounding, std::span<const std::byte* const> inputs,
                 std::span<std::byte* const> outputs, std::size_t count) {
  reduce_vectors<true>(rounding, inputs, outputs, count);
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels {

HWY_EXPORT(reduce_f16);
HWY_EXPORT(reduce_bf16);

void reduce_rounded(const Wire& wire, ReduceOp op, std::span<const std::byte* const> inputs,
                    std::span<std::byte* const> outputs, std::size_t count) {
  if (inputs.empty()) throw InvalidArgument("reduce_rounded: got no inputs, expected at least one");
  if (op != ReduceOp::sum && op != ReduceOp::avg) {
    throw InvalidArgument(
        detail::concat("reduce_rounded: got ", name(op), ", expected sum or avg"));
  }
  const float divisor = op == ReduceOp::avg ? 1.0f / static_cast<float>(inputs.size()) : 1.0f;
  const Rounding rounding{
      .limit = wire.clip > 0 ? wire.clip : std::numeric_limits<float>::infinity(),
      .before = wire.predivide ? divisor : 1.0f,
      .after = wire.predivide ? 1.0f : divisor};
  if (wire.dtype == DType::f16) {
    HWY_DYNAMIC_DISPATCH(reduce_f16)(rounding, inputs, outputs, count);
  } else if (wire.dtype == DType::bf16) {
    HWY_DYNAMIC_DISPATCH(reduce_bf16)(rounding, inputs, outputs, count);
  } else {
    throw InvalidArgument(detail::concat("reduce_rounded: got a wire of ", name(wire.dtype),
                                         ", expected float16 or bfloat16"));
  }
}

}  // namespace lockstep::kernels
#endif  // HWY_ONCE
