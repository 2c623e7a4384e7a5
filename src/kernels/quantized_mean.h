#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace lockstep::inline v0_2::kernels {

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
