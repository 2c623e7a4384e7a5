#include "kernels/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "kernels/reference.h"
#include "lockstep/error.h"
#include "tests/kernels/guarded.h"

namespace lockstep::inline v0_2::kernels {
namespace {

constexpr std::size_t quantize_counts[] = {0, 1, 2, 63, 64, 65, 511, 512, 513, 1024, 3000};

std::vector<float> random_values(std::size_t count, float size) {
  std::mt19937_64 random(count);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (auto& value : values) value = size * normal(random);
  return values;
}

/// Sizes of values, from denormals to what fills the range.
constexpr float sizes[] = {0, 1e-42f, 1e-36f, 1e-3f, 1, 5e37f};

std::vector<QuantizedChunk> quantized(std::span<const float> values) {
  std::vector<QuantizedChunk> chunks;
  for (std::size_t at = 0; at < values.size(); at += quantized_chunk) {
    chunks.push_back(
        reference::quantized(values.subspan(at, std::min(quantized_chunk, values.size() - at))));
  }
  return chunks;
}

bool equal(const std::vector<QuantizedChunk>& a, const std::vector<QuantizedChunk>& b) {
  return std::ranges::equal(std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
}

float value_of(const std::vector<QuantizedChunk>& chunks, std::size_t i) {
  const auto& chunk = chunks[i / quantized_chunk];
  return chunk.scale * static_cast<float>(chunk.codes[i % quantized_chunk]);
}

class QuantizeOnTarget : public ::testing::TestWithParam<std::int64_t> {
 protected:
  OnlyTarget only_{GetParam()};
};

TEST_P(QuantizeOnTarget, EqualsTheReferenceInEveryBit) {
  for (const std::size_t count : quantize_counts) {
    for (const float size : sizes) {
      const auto values = random_values(count, size);
      Buffer from(count * sizeof(float), float_misalignments[count % 5]);
      std::copy(values.begin(), values.end(), from.as<float>().begin());
      std::vector<QuantizedChunk> chunks(quantized_chunks(count));
      quantize(from.as<float>(), chunks);
      ASSERT_TRUE(equal(chunks, quantized(values))) << count << " of size " << size;

      Buffer to(count * sizeof(float), float_misalignments[(count + 1) % 5]);
      dequantize(chunks, to.as<float>());
      ASSERT_TRUE(to.guards_untouched() && from.guards_untouched());
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(to.as<float>()[i], value_of(chunks, i)) << i;
        // Half a step of the chunk's scale, or the whole value where it became zero.
        ASSERT_LE(std::fabs(to.as<float>()[i] - values[i]),
                  std::max(0.501f * chunks[i / quantized_chunk].scale, 0x1p-119f));
      }
    }
  }
}

TEST_P(QuantizeOnTarget, KeepsWhatWasNotSaid) {
  for (const std::size_t count : quantize_counts) {
    const auto gradient = random_values(count, 1);
    const auto before = random_values(count + 1, 0.01f);
    Buffer residual(count * sizeof(float), float_misalignments[count % 5]);
    std::vector<float> sum;
    for (std::size_t i = 0; i < count; ++i) {
      residual.as<float>()[i] = before[i];
      sum.push_back(gradient[i] + before[i]);
    }
    std::vector<QuantizedChunk> chunks(quantized_chunks(count));
    quantize_with_feedback(gradient, residual.as<float>(), chunks);
    ASSERT_TRUE(equal(chunks, quantized(sum))) << count;
    ASSERT_TRUE(residual.guards_untouched());
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(residual.as<float>()[i], sum[i] - value_of(chunks, i)) << i;
    }
  }
}

TEST_P(QuantizeOnTarget, AveragesInRankOrder) {
  for (const std::size_t ranks : {1, 2, 3, 7}) {
    std::vector<QuantizedChunk> inputs;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto values = random_values(2 * quantized_chunk, 1e37f * static_cast<float>(rank + 1));
      const auto chunks = quantized(values);
      inputs.insert(inputs.end(), chunks.begin(), chunks.end());
    }
    std::vector<float> mean(2 * quantized_chunk);
    const float share = 1.0f / static_cast<float>(ranks);
    for (std::size_t i = 0; i < mean.size(); ++i) {
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const auto& chunk = inputs[rank * 2 + i / quantized_chunk];
        mean[i] += chunk.scale * share * static_cast<float>(chunk.codes[i % quantized_chunk]);
      }
    }
    std::vector<QuantizedChunk> result(2);
    quantize_mean(inputs, ranks, result);
    EXPECT_TRUE(equal(result, quantized(mean))) << ranks;
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, QuantizeOnTarget,
                         ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& target) { return hwy::TargetName(target.param); });

TEST(Quantize, SaysWhoseAndWhichElementIsNotFinite) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    auto values = random_values(700, 1);
    const auto good = quantized(values);
    values[512 + 150] = bad;
    values[512 + 160] = bad;
    std::vector<float> residual(700, 1);
    std::vector<QuantizedChunk> chunks(2);
    quantize_with_feedback(values, residual, chunks);
    EXPECT_FALSE(std::isnan(chunks[0].scale));
    ASSERT_TRUE(std::isnan(chunks[1].scale));
    EXPECT_EQ(first_not_finite(chunks[1]), 150U);
    EXPECT_EQ(residual[600], 0);

    std::vector<QuantizedChunk> inputs(good);
    inputs.insert(inputs.end(), chunks.begin(), chunks.end());
    std::vector<QuantizedChunk> mean(2);
    quantize_mean(inputs, 2, mean);
    EXPECT_FALSE(std::isnan(mean[0].scale));
    ASSERT_TRUE(std::isnan(mean[1].scale));
    EXPECT_EQ(first_not_finite(mean[1]), 150U);
    EXPECT_EQ(rank_not_finite(mean[1]), 1);
  }
}

TEST(Quantize, RefusesAnotherNumberOfChunks) {
  std::vector<float> values(513);
  std::vector<QuantizedChunk> chunks(1);
  EXPECT_THROW(quantize(values, chunks), InvalidArgument);
  EXPECT_THROW(dequantize(chunks, values), InvalidArgument);
  EXPECT_THROW(quantize_with_feedback(values, values, chunks), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::kernels
