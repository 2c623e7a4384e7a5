#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace lockstep::inline v0_2::kernels {

/// One rank's elements, and what of them has not been said yet.
struct QuantizedPart {
  float* values;
  float* residual;  ///< null without error feedback, the same for all ranks
};

/// An element that is not finite.
struct NotFinite {
  std::size_t element;
  std::int32_t rank;
};

/// All ranks' values = their mean, as 8-bit codes say it, in place: bit for bit what every rank's
/// quantize (or quantize_with_feedback), then quantize_mean, then dequantize make of them. No codes
/// are written: a chunk is encoded, decoded, averaged, encoded and decoded again while it lies in
/// the first cache, so that memory is read and written once.
/// A chunk in which some rank's elements are not finite keeps its values. Returns the first such
/// element of the first such chunk, of the lowest rank that has one there.
/// Shapes: count elements of each rank.
std::optional<NotFinite> quantized_mean(std::span<const QuantizedPart> ranks, std::size_t count);

}  // namespace lockstep::kernels
