#include "kernels/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/quantize-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::inline v0_2::kernels::HWY_NAMESPACE {

/// Writes the codes of values. With feedback, also writes the rounding errors to rest.
template <bool kFeedback>
HWY_INLINE void write_codes(float* rest, const float* values, const Scale& scale,
                            std::int8_t* codes) {
  const Floats d;
  const hn::Rebind<std::int16_t, Floats> i16;
  const hn::Rebind<std::int8_t, Floats> i8;
  const auto inverse = hn::Set(d, scale.inverse);
  const auto whole = hn::Set(d, scale.scale);
  for (std::size_t i = 0; i < quantized_chunk; i += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, values + i);
    const auto rounded = codes_of(v, inverse);
    hn::StoreU(hn::DemoteTo(i8, hn::DemoteTo(i16, hn::ConvertTo(Whole(), rounded))), i8, codes + i);
    if constexpr (kFeedback) hn::StoreU(hn::Sub(v, hn::Mul(rounded, whole)), d, rest + i);
  }
}

void mark_not_finite(std::size_t place, QuantizedChunk& chunk) {
  const auto number = static_cast<std::uint16_t>(place);
  chunk.scale = std::numeric_limits<float>::quiet_NaN();
  std::fill_n(chunk.codes, quantized_chunk, std::int8_t{0});
  std::memcpy(chunk.codes, &number, sizeof number);
}

void quantize_chunk(const float* values, QuantizedChunk& chunk) {
  const auto scale = measure(values);
  if (!scale.is_finite()) return mark_not_finite(first_not_finite(values), chunk);
  chunk.scale = scale.scale;
  write_codes<false>(nullptr, values, scale, chunk.codes);
}

void quantize_chunk_with_feedback(const float* values, float* residual, QuantizedChunk& chunk) {
  const auto scale = add_and_measure(values, residual);
  if (!scale.is_finite()) {
    mark_not_finite(first_not_finite(residual), chunk);
    std::fill_n(residual, quantized_chunk, 0.0f);
    return;
  }
  chunk.scale = scale.scale;
  write_codes<true>(residual, residual, scale, chunk.codes);
}

/// values (+)= scale * codes
template <bool kAdd>
HWY_INLINE void read_codes(const std::int8_t* codes, float scale, float* values) {
  const Floats d;
  const hn::Rebind<std::int8_t, Floats> i8;
  const auto factor = hn::Set(d, scale);
  for (std::size_t i = 0; i < quantized_chunk; i += hn::Lanes(d)) {
    const auto rounded = hn::ConvertTo(d, hn::PromoteTo(Whole(), hn::LoadU(i8, codes + i)));
    auto v = hn::Mul(rounded, factor);
    if constexpr (kAdd) v = hn::Add(hn::LoadU(d, values + i), v);
    hn::StoreU(v, d, values + i);
  }
}

void dequantize_chunk(const QuantizedChunk& chunk, float* values) {
  read_codes<false>(chunk.codes, chunk.scale, values);
}

/// sum (+)= share · decoded chunk
void add_share(const QuantizedChunk& chunk, float share, bool first, float* sum) {
  if (first) return read_codes<false>(chunk.codes, chunk.scale * share, sum);
  read_codes<true>(chunk.codes, chunk.scale * share, sum);
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::inline v0_2::kernels {

HWY_EXPORT(quantize_chunk);
HWY_EXPORT(quantize_chunk_with_feedback);
HWY_EXPORT(dequantize_chunk);
HWY_EXPORT(add_share);

std::size_t first_not_finite(const QuantizedChunk& chunk) {
  std::uint16_t place;
  std::memcpy(&place, chunk.codes, sizeof place);
  return place;
}

std::int32_t rank_not_finite(const QuantizedChunk& chunk) {
  std::int32_t rank;
  std::memcpy(&rank, chunk.codes + sizeof(std::uint16_t), sizeof rank);
  return rank;
}

void quantize(std::span<const float> values, std::span<QuantizedChunk> chunks) {
  const auto quantize_one = [&](std::size_t at, const float* of_chunk) {
    HWY_DYNAMIC_DISPATCH(quantize_chunk)(of_chunk, chunks[at / quantized_chunk]);
  };
  for_each_block<quantized_chunk>(values.size(), quantize_one, values.data());
}

void quantize_with_feedback(std::span<const float> values, std::span<float> residual,
                            std::span<QuantizedChunk> chunks) {
  const auto quantize_one = [&](std::size_t at, const float* of_chunk, float* rest) {
    HWY_DYNAMIC_DISPATCH(quantize_chunk_with_feedback)
    (of_chunk, rest, chunks[at / quantized_chunk]);
  };
  for_each_block<quantized_chunk>(values.size(), quantize_one, values.data(), residual.data());
}

void quantize_mean(std::span<const QuantizedChunk> inputs, std::size_t ranks,
                   std::span<QuantizedChunk> chunks) {
  const float share = 1.0f / static_cast<float>(ranks);
  float sum[quantized_chunk];
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    std::size_t rank = 0;
    for (; rank < ranks; ++rank) {
      const auto& input = inputs[rank * chunks.size() + c];
      if (std::isnan(input.scale)) break;
      HWY_DYNAMIC_DISPATCH(add_share)(input, share, rank == 0, sum);
    }
    if (rank < ranks) {
      const auto first_rank = static_cast<std::int32_t>(rank);
      chunks[c] = inputs[rank * chunks.size() + c];
      std::memcpy(chunks[c].codes + sizeof(std::uint16_t), &first_rank, sizeof first_rank);
      continue;
    }
    HWY_DYNAMIC_DISPATCH(quantize_chunk)(sum, chunks[c]);
  }
}

void dequantize(std::span<const QuantizedChunk> chunks, std::span<float> values) {
  const auto dequantize_one = [&](std::size_t at, float* of_chunk) {
    HWY_DYNAMIC_DISPATCH(dequantize_chunk)(chunks[at / quantized_chunk], of_chunk);
  };
  for_each_block<quantized_chunk>(values.size(), dequantize_one, values.data());
}

}  // namespace lockstep::kernels
#endif  // HWY_ONCE
