#include "lockstep/kernels/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "lockstep/core/error.h"
#include "lockstep/core/text.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lockstep/kernels/quantize.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// All functions here work on one whole chunk.
using Floats = hn::ScalableTag<float>;

float largest_magnitude(const float* values) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  auto largest = hn::Zero(d);
  auto not_a_number = hn::Zero(d);
  for (std::size_t i = 0; i < quantized_chunk; i += lanes) {
    const auto v = hn::LoadU(d, values + i);
    largest = hn::Max(largest, hn::Abs(v));
    not_a_number = hn::IfThenElse(hn::IsNaN(v), v, not_a_number);
  }
  const bool has_nan = !hn::AllTrue(d, hn::Eq(not_a_number, hn::Zero(d)));
  return has_nan ? std::numeric_limits<float>::quiet_NaN()
                 : hn::GetLane(hn::MaxOfLanes(d, largest));
}

void encode(const float* values, float inverse, std::int8_t* codes) {
  const Floats d;
  const hn::Rebind<std::int16_t, Floats> i16;
  const hn::Rebind<std::int8_t, Floats> i8;
  const auto factor = hn::Set(d, inverse);
  for (std::size_t i = 0; i < quantized_chunk; i += hn::Lanes(d)) {
    const auto whole = hn::NearestInt(hn::Mul(hn::LoadU(d, values + i), factor));
    hn::StoreU(hn::DemoteTo(i8, hn::DemoteTo(i16, whole)), i8, codes + i);
  }
}

/// values = scale * codes for a sign of 0, values += or -= it for others.
void decode(const std::int8_t* codes, float scale, int sign, float* values) {
  const Floats d;
  const hn::Rebind<std::int8_t, Floats> i8;
  const hn::RebindToSigned<Floats> i32;
  const auto factor = hn::Set(d, scale);
  for (std::size_t i = 0; i < quantized_chunk; i += hn::Lanes(d)) {
    const auto whole = hn::PromoteTo(i32, hn::LoadU(i8, codes + i));
    auto v = hn::Mul(hn::ConvertTo(d, whole), factor);
    if (sign > 0) v = hn::Add(hn::LoadU(d, values + i), v);
    if (sign < 0) v = hn::Sub(hn::LoadU(d, values + i), v);
    hn::StoreU(v, d, values + i);
  }
}

void add(const float* values, float* sum) {
  const Floats d;
  for (std::size_t i = 0; i < quantized_chunk; i += hn::Lanes(d)) {
    hn::StoreU(hn::Add(hn::LoadU(d, values + i), hn::LoadU(d, sum + i)), d, sum + i);
  }
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels {

HWY_EXPORT(largest_magnitude);
HWY_EXPORT(encode);
HWY_EXPORT(decode);
HWY_EXPORT(add);

namespace {

constexpr float largest_code = 127;
/// Of the largest in a chunk: below it the scale's inverse would not be a number.
constexpr float least_largest = 0x1p-119f;

void write_place(std::size_t place, QuantizedChunk& chunk) {
  const auto number = static_cast<std::uint16_t>(place);
  chunk.scale = std::numeric_limits<float>::quiet_NaN();
  std::fill_n(chunk.codes, quantized_chunk, std::int8_t{0});
  std::memcpy(chunk.codes, &number, sizeof number);
}

/// Encodes one whole chunk; false if it is not finite.
bool quantize_chunk(const float* values, QuantizedChunk& chunk) {
  const float largest = HWY_DYNAMIC_DISPATCH(largest_magnitude)(values);
  if (!std::isfinite(largest)) {
    const auto* end = values + quantized_chunk;
    const auto* first = std::find_if(values, end, [](float v) { return !std::isfinite(v); });
    write_place(static_cast<std::size_t>(first - values), chunk);
    return false;
  }
  if (largest < least_largest) {
    chunk.scale = 0;
    std::fill_n(chunk.codes, quantized_chunk, std::int8_t{0});
    return true;
  }
  chunk.scale = largest / largest_code;
  HWY_DYNAMIC_DISPATCH(encode)(values, largest_code / largest, chunk.codes);
  return true;
}

void expect_chunks(std::size_t got, std::size_t count) {
  if (got == quantized_chunks(count)) return;
  throw InvalidArgument(detail::concat("quantize: got ", got, " chunks for ", count,
                                       " elements, expected ", quantized_chunks(count)));
}

/// Calls fn(first element, elements) for each chunk of count elements.
template <class Fn>
void for_each_chunk(std::size_t count, const Fn& fn) {
  for (std::size_t at = 0; at < count; at += quantized_chunk) {
    fn(at, std::min(quantized_chunk, count - at));
  }
}

}  // namespace

std::size_t first_not_finite(const QuantizedChunk& chunk) {
  std::uint16_t place;
  std::memcpy(&place, chunk.codes, sizeof place);
  return place;
}

std::int32_t complaining_rank(const QuantizedChunk& chunk) {
  std::int32_t rank;
  std::memcpy(&rank, chunk.codes + sizeof(std::uint16_t), sizeof rank);
  return rank;
}

void quantize(std::span<const float> values, std::span<QuantizedChunk> chunks) {
  expect_chunks(chunks.size(), values.size());
  for_each_chunk(values.size(), [&](std::size_t at, std::size_t length) {
    auto& chunk = chunks[at / quantized_chunk];
    if (length == quantized_chunk) {
      quantize_chunk(values.data() + at, chunk);
      return;
    }
    float padded[quantized_chunk] = {};
    std::copy_n(values.data() + at, length, padded);
    quantize_chunk(padded, chunk);
  });
}

void quantize_with_feedback(std::span<const float> values, std::span<float> residual,
                            std::span<QuantizedChunk> chunks) {
  expect_chunks(chunks.size(), values.size());
  for_each_chunk(values.size(), [&](std::size_t at, std::size_t length) {
    auto& chunk = chunks[at / quantized_chunk];
    const auto move = [&chunk](const float* from, float* rest) {
      HWY_DYNAMIC_DISPATCH(add)(from, rest);
      if (quantize_chunk(rest, chunk)) {
        HWY_DYNAMIC_DISPATCH(decode)(chunk.codes, chunk.scale, -1, rest);
      } else {
        std::fill_n(rest, quantized_chunk, 0.0f);
      }
    };
    if (length == quantized_chunk) {
      move(values.data() + at, residual.data() + at);
      return;
    }
    float from[quantized_chunk] = {};
    float rest[quantized_chunk] = {};
    std::copy_n(values.data() + at, length, from);
    std::copy_n(residual.data() + at, length, rest);
    move(from, rest);
    std::copy_n(rest, length, residual.data() + at);
  });
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
      HWY_DYNAMIC_DISPATCH(decode)(input.codes, input.scale * share, rank == 0 ? 0 : 1, sum);
    }
    if (rank < ranks) {
      const auto complaint = static_cast<std::int32_t>(rank);
      chunks[c] = inputs[rank * chunks.size() + c];
      std::memcpy(chunks[c].codes + sizeof(std::uint16_t), &complaint, sizeof complaint);
      continue;
    }
    quantize_chunk(sum, chunks[c]);
  }
}

void dequantize(std::span<const QuantizedChunk> chunks, std::span<float> values) {
  expect_chunks(chunks.size(), values.size());
  for_each_chunk(values.size(), [&](std::size_t at, std::size_t length) {
    const auto& chunk = chunks[at / quantized_chunk];
    if (length == quantized_chunk) {
      HWY_DYNAMIC_DISPATCH(decode)(chunk.codes, chunk.scale, 0, values.data() + at);
      return;
    }
    float padded[quantized_chunk];
    HWY_DYNAMIC_DISPATCH(decode)(chunk.codes, chunk.scale, 0, padded);
    std::copy_n(padded, length, values.data() + at);
  });
}

}  // namespace lockstep::kernels
#endif  // HWY_ONCE
