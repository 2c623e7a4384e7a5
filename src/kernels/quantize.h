#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace lockstep::inline v0_2::kernels {

/// Number of elements with a common scale.
inline constexpr std::size_t quantized_chunk = 512;

/// The wire format of a chunk: value i is scale · codes[i]. If the values had NaN or Inf, scale is
/// NaN, and codes[0…1] are the index of the first such element, low byte first.
struct QuantizedChunk {
  float scale;
  std::int8_t codes[quantized_chunk];
};
static_assert(sizeof(QuantizedChunk) == sizeof(float) + quantized_chunk);

/// The number of chunks for count elements. The codes of a last, shorter chunk are padded by zeros.
constexpr std::size_t quantized_chunks(std::size_t count) {
  return (count + quantized_chunk - 1) / quantized_chunk;
}

/// The index in the chunk of the first element that was not finite. Requires a scale of NaN.
std::size_t first_not_finite(const QuantizedChunk& chunk);

/// chunks.size() is quantized_chunks(values.size()), here and below.
///
/// scale = largest magnitude / 127; codes = values / scale, rounded to nearest, ties to even. A
/// chunk whose largest magnitude is below 2^-119 becomes zeros.
/// Source: per-chunk scaling as in Dettmers, "8-Bit Approximations for Parallelism in Deep
/// Learning", 2016, with linear codes.
void quantize(std::span<const float> values, std::span<QuantizedChunk> chunks);

/// residual += values; chunks = quantize(residual); residual -= dequantize(chunks). The residual of
/// a chunk with NaN or Inf becomes zero.
void quantize_with_feedback(std::span<const float> values, std::span<float> residual,
                            std::span<QuantizedChunk> chunks);

/// The mean of the quantized vectors of `ranks` ranks, quantized again: value = Σ_r code_r ·
/// (scale_r · (1/ranks)), in rank order. Chunk c of rank r is inputs[r · chunks.size() + c]. If a
/// chunk of some rank is not finite, the result is the chunk of the first such rank, with that rank
/// in codes[2…5].
void quantize_mean(std::span<const QuantizedChunk> inputs, std::size_t ranks,
                   std::span<QuantizedChunk> chunks);

/// The rank whose chunk was not finite, in a result of quantize_mean() with a scale of NaN.
std::int32_t rank_not_finite(const QuantizedChunk& chunk);

/// values = decoded chunks.
void dequantize(std::span<const QuantizedChunk> chunks, std::span<float> values);

/// One rank's elements and their residuals.
struct QuantizedPart {
  float* values;
  float* residual;  ///< null without error feedback, on all ranks
};

/// The position of an element that is not finite.
struct NotFinite {
  std::size_t element;
  std::int32_t rank;
};

/// All ranks' values = their mean with 8-bit codes, in place. The bits are those of quantize() (or
/// quantize_with_feedback()) on every rank, then quantize_mean(), then dequantize(). No codes are
/// stored: a chunk is encoded, decoded, averaged, encoded and decoded again in the L1 cache, so
/// memory is read and written once.
/// A chunk in which a rank has an element that is not finite keeps its values. Returns the first
/// such element of the lowest such rank in the first such chunk.
/// Shapes: count elements of each rank.
std::optional<NotFinite> quantized_mean(std::span<const QuantizedPart> ranks, std::size_t count);

}  // namespace lockstep::kernels
