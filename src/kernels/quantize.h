#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::inline v0_2::kernels {

/// Elements that share a scale.
inline constexpr std::size_t quantized_chunk = 512;

/// The wire format of a chunk: value i is scale · codes[i]. A chunk that held NaN or Inf has scale
/// NaN, and codes[0…1] hold the place of the first such element, low byte first.
struct QuantizedChunk {
  float scale;
  std::int8_t codes[quantized_chunk];
};
static_assert(sizeof(QuantizedChunk) == sizeof(float) + quantized_chunk);

/// Chunks that hold count elements; the last may be short, its codes are then padded by zeros.
constexpr std::size_t quantized_chunks(std::size_t count) {
  return (count + quantized_chunk - 1) / quantized_chunk;
}

/// Where the first element that is not finite was, for a chunk whose scale is NaN.
std::size_t first_not_finite(const QuantizedChunk& chunk);

/// scale = largest magnitude / 127; codes = values / scale to the nearest integer, of two equally
/// near the even. A chunk whose largest is below 2^-119 becomes zeros.
/// Source: per-chunk scaling as in Dettmers, "8-Bit Approximations for Parallelism in Deep
/// Learning", 2016, with linear codes.
void quantize(std::span<const float> values, std::span<QuantizedChunk> chunks);

/// residual += values; chunks = quantize(residual); residual -= what chunks say. The residual of a
/// chunk that is not finite becomes zero.
void quantize_with_feedback(std::span<const float> values, std::span<float> residual,
                            std::span<QuantizedChunk> chunks);

/// The mean of ranks quantized vectors, quantized again: value = Σ_r code_r · (scale_r ·
/// (1/ranks)), in rank order. Chunk c of rank r is inputs[r · chunks.size() + c]. Where some are
/// not finite, the first rank's complaint is kept, with its rank in codes[2…5].
void quantize_mean(std::span<const QuantizedChunk> inputs, std::size_t ranks,
                   std::span<QuantizedChunk> chunks);

/// The rank that quantize_mean found a chunk of not to be finite.
std::int32_t complaining_rank(const QuantizedChunk& chunk);

void dequantize(std::span<const QuantizedChunk> chunks, std::span<float> values);

}  // namespace lockstep::kernels
