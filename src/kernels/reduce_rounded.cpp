#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/reduce.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce_rounded.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/half-inl.h"

#ifndef LOCKSTEP_KERNELS_ROUNDING
#define LOCKSTEP_KERNELS_ROUNDING
namespace lockstep::inline v0_2::kernels {
namespace {

/// Clip limit and factor for each element, and factor for the sum.
struct Rounding {
  float limit;
  float before;
  float after;
};

}  // namespace
}  // namespace lockstep::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace lockstep::inline v0_2::kernels::HWY_NAMESPACE {

/// Clips and divides elements.
template <class D>
HWY_INLINE hn::Vec<D> prepared(D d, hn::Vec<D> values, const Rounding& rounding) {
  const auto limit = hn::Set(d, rounding.limit);
  const auto magnitude = hn::Abs(values);
  // Not Min(), which would replace NaN.
  const auto over = hn::Gt(magnitude, limit);
  values = hn::IfThenElse(over, hn::CopySign(limit, values), values);
  return hn::Mul(values, hn::Set(d, rounding.before));
}

template <bool kIsBf16, class D>
HWY_INLINE hn::Vec<D> nearest_half(D d, hn::Vec<D> values) {
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
    const auto values = hn::LoadU(d, reinterpret_cast<const float*>(from));
    return nearest_half<kIsBf16>(d, prepared(d, values, rounding));
  };
  const auto finish = [&](auto sum) {
    return nearest_half<kIsBf16>(d, hn::Mul(sum, hn::Set(d, rounding.after)));
  };

  std::size_t at = 0;
  for (; end - at >= 2 * step; at += 2 * step) {
    auto v0 = load(inputs[0] + at);
    auto v1 = load(inputs[0] + at + step);
    for (std::size_t i = 1; i < inputs.size(); ++i) {
      v0 = hn::Add(v0, load(inputs[i] + at));
      v1 = hn::Add(v1, load(inputs[i] + at + step));
    }
    v0 = finish(v0);
    v1 = finish(v1);
    for (std::byte* output : outputs) {
      hn::StoreU(v0, d, reinterpret_cast<float*>(output + at));
      hn::StoreU(v1, d, reinterpret_cast<float*>(output + at + step));
    }
  }

  // The remaining elements, in a buffer of one vector; the last one may be partial.
  HWY_ALIGN std::byte lanes[HWY_MAX_BYTES] = {};
  for (; at < end; at += step) {
    const std::size_t bytes = end - at < step ? end - at : step;
    auto sum = hn::Zero(d);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      std::memcpy(lanes, inputs[i] + at, bytes);
      sum = i == 0 ? load(lanes) : hn::Add(sum, load(lanes));
    }
    hn::StoreU(finish(sum), d, reinterpret_cast<float*>(lanes));
    for (std::byte* output : outputs) std::memcpy(output + at, lanes, bytes);
  }
}

/// Calls convert(from, to) for every vector of count elements, in order. Uses buffers for a partial
/// last vector. Each vector is read before the result is written, so the buffers may overlap as in
/// the header.
template <class From, class To, class Convert>
void convert_vectors(const std::byte* from, std::byte* to, std::size_t count,
                     const Convert& convert) {
  const std::size_t lanes = hn::Lanes(hn::ScalableTag<float>());
  std::size_t i = 0;
  for (; count - i >= lanes; i += lanes) {
    convert(reinterpret_cast<const From*>(from) + i, reinterpret_cast<To*>(to) + i);
  }
  if (i == count) return;
  HWY_ALIGN From last[HWY_MAX_BYTES / sizeof(float)] = {};
  HWY_ALIGN To converted[HWY_MAX_BYTES / sizeof(float)];
  std::memcpy(last, from + i * sizeof(From), (count - i) * sizeof(From));
  convert(last, converted);
  std::memcpy(to + i * sizeof(To), converted, (count - i) * sizeof(To));
}

template <bool kIsBf16>
void round_vectors(const Rounding& rounding, const std::byte* values, std::byte* halves,
                   std::size_t count) {
  const hn::ScalableTag<float> d;
  convert_vectors<float, std::uint16_t>(
      values, halves, count, [&](const float* from, std::uint16_t* to) {
        const auto ready = prepared(d, hn::LoadU(d, from), rounding);
        if constexpr (kIsBf16) {
          hn::StoreU(f32_to_bf16(d, ready), HalfTag<decltype(d)>(), to);
        } else {
          hn::StoreU(f32_to_f16(d, ready), HalfTag<decltype(d)>(), to);
        }
      });
}

template <bool kIsBf16>
void widen_vectors(const std::byte* halves, std::byte* values, std::size_t count) {
  const hn::ScalableTag<float> d;
  convert_vectors<std::uint16_t, float>(
      halves, values, count, [&](const std::uint16_t* from, float* to) {
        const auto loaded = hn::LoadU(HalfTag<decltype(d)>(), from);
        if constexpr (kIsBf16) {
          hn::StoreU(bf16_to_f32(d, loaded), d, to);
        } else {
          hn::StoreU(f16_to_f32(d, loaded), d, to);
        }
      });
}

void reduce_any(bool is_bf16, const Rounding& rounding, std::span<const std::byte* const> inputs,
                std::span<std::byte* const> outputs, std::size_t count) {
  is_bf16 ? reduce_vectors<true>(rounding, inputs, outputs, count)
          : reduce_vectors<false>(rounding, inputs, outputs, count);
}
void round_any(bool is_bf16, const Rounding& rounding, const std::byte* values, std::byte* halves,
               std::size_t count) {
  is_bf16 ? round_vectors<true>(rounding, values, halves, count)
          : round_vectors<false>(rounding, values, halves, count);
}
void widen_any(bool is_bf16, const std::byte* halves, std::byte* values, std::size_t count) {
  is_bf16 ? widen_vectors<true>(halves, values, count)
          : widen_vectors<false>(halves, values, count);
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::inline v0_2::kernels {

HWY_EXPORT(reduce_any);
HWY_EXPORT(round_any);
HWY_EXPORT(widen_any);

namespace {

Rounding rounding_of(const Wire& wire, ReduceOp op, std::size_t ranks) {
  const float divisor = op == ReduceOp::avg ? 1.0f / static_cast<float>(ranks) : 1.0f;
  return {.limit = wire.clip > 0 ? wire.clip : std::numeric_limits<float>::infinity(),
          .before = wire.predivide ? divisor : 1.0f,
          .after = wire.predivide ? 1.0f : divisor};
}

}  // namespace

void reduce_rounded(const Wire& wire, ReduceOp op, std::span<const std::byte* const> inputs,
                    std::span<std::byte* const> outputs, std::size_t count) {
  const auto rounding = rounding_of(wire, op, inputs.size());
  HWY_DYNAMIC_DISPATCH(reduce_any)(wire.dtype == DType::bf16, rounding, inputs, outputs, count);
}

void round_to_halves(const Wire& wire, ReduceOp op, std::size_t ranks, const std::byte* values,
                     std::byte* halves, std::size_t count) {
  const auto rounding = rounding_of(wire, op, ranks);
  HWY_DYNAMIC_DISPATCH(round_any)(wire.dtype == DType::bf16, rounding, values, halves, count);
}

void reduce_halves(const Wire& wire, ReduceOp op, std::span<const std::byte* const> inputs,
                   std::span<std::byte* const> outputs, std::size_t count) {
  reduce(wire.dtype, wire.predivide ? ReduceOp::sum : op, inputs, outputs, count);
}

void widen_halves(const Wire& wire, const std::byte* halves, std::byte* values, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(widen_any)(wire.dtype == DType::bf16, halves, values, count);
}

}  // namespace lockstep::kernels
#endif  // HWY_ONCE
