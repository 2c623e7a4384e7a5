#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "bench/reference/kernels.h"
#include "kernels/quantize.h"

namespace lockstep::inline v0_2::kernels {

using RankVectors = std::vector<std::vector<float>>;  ///< one for each rank

/// Chunk by chunk.
inline std::vector<QuantizedChunk> quantized(std::span<const float> values) {
  std::vector<QuantizedChunk> chunks;
  for (std::size_t at = 0; at < values.size(); at += quantized_chunk) {
    chunks.push_back(
        reference::quantized(values.subspan(at, std::min(quantized_chunk, values.size() - at))));
  }
  return chunks;
}

/// factor times what the chunks say of an element.
inline float value_of(const std::vector<QuantizedChunk>& chunks, std::size_t i, float factor = 1) {
  const auto& chunk = chunks[i / quantized_chunk];
  return chunk.scale * factor * static_cast<float>(chunk.codes[i % quantized_chunk]);
}

/// Residuals become what is not said; returns what all ranks shall have.
inline std::vector<float> expected_mean(const RankVectors& values, RankVectors& residuals,
                                        bool feedback) {
  const std::size_t count = values[0].size();
  std::vector<float> mean(count);
  for (std::size_t rank = 0; rank < values.size(); ++rank) {
    auto sum = values[rank];
    for (std::size_t i = 0; feedback && i < count; ++i) sum[i] += residuals[rank][i];
    const auto chunks = quantized(sum);
    for (std::size_t i = 0; i < count; ++i) {
      const float part = value_of(chunks, i, 1.0f / static_cast<float>(values.size()));
      mean[i] = rank == 0 ? part : mean[i] + part;
      if (feedback) residuals[rank][i] = sum[i] - value_of(chunks, i);
    }
  }
  const auto chunks = quantized(mean);
  for (std::size_t i = 0; i < count; ++i) mean[i] = value_of(chunks, i);
  return mean;
}

}  // namespace lockstep::kernels
