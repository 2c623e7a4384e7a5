#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "kernels/quantize.h"
#include "kernels/reference.h"
#include "tests/kernels/guarded.h"

namespace lockstep::inline v0_2::kernels {
namespace {

using RankVectors = std::vector<std::vector<float>>;  ///< one for each rank

RankVectors vectors_of(std::size_t ranks, std::size_t count, float size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  RankVectors all(ranks, std::vector<float>(count));
  for (auto& values : all) {
    for (auto& value : values) value = size * normal(random);
  }
  return all;
}

/// Values as codes, in scalar code.
class Coded {
 public:
  explicit Coded(const std::vector<float>& values) {
    for (std::size_t at = 0; at < values.size(); at += quantized_chunk) {
      const auto length = std::min(quantized_chunk, values.size() - at);
      chunks_.push_back(reference::quantized(std::span(values).subspan(at, length)));
    }
  }
  /// factor times what they say of an element.
  float says(std::size_t i, float factor = 1) const {
    const auto& chunk = chunks_[i / quantized_chunk];
    return static_cast<float>(chunk.codes[i % quantized_chunk]) * (chunk.scale * factor);
  }

 private:
  std::vector<QuantizedChunk> chunks_;
};

/// Residuals become what is not said; returns what all ranks shall have.
std::vector<float> expected_mean(const RankVectors& values, RankVectors& residuals, bool feedback) {
  const std::size_t count = values[0].size();
  std::vector<float> mean(count);
  for (std::size_t rank = 0; rank < values.size(); ++rank) {
    auto sum = values[rank];
    for (std::size_t i = 0; feedback && i < count; ++i) sum[i] += residuals[rank][i];
    const Coded coded(sum);
    for (std::size_t i = 0; i < count; ++i) {
      const float part = coded.says(i, 1.0f / static_cast<float>(values.size()));
      mean[i] = rank == 0 ? part : mean[i] + part;
      if (feedback) residuals[rank][i] = sum[i] - coded.says(i);
    }
  }
  const Coded coded(mean);
  for (std::size_t i = 0; i < count; ++i) mean[i] = coded.says(i);
  return mean;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return std::ranges::equal(a, b, {}, std::bit_cast<std::uint32_t, float>,
                            std::bit_cast<std::uint32_t, float>);
}

std::vector<QuantizedPart> parts_of(RankVectors& values, RankVectors& residuals, bool feedback) {
  std::vector<QuantizedPart> parts;
  for (std::size_t r = 0; r < values.size(); ++r) {
    parts.push_back(
        {.values = values[r].data(), .residual = feedback ? residuals[r].data() : nullptr});
  }
  return parts;
}

class QuantizedMeanOnTarget : public ::testing::TestWithParam<std::int64_t> {
 protected:
  OnlyTarget only_{GetParam()};
};

TEST_P(QuantizedMeanOnTarget, EqualsTheReferenceInEveryBit) {
  for (const std::size_t ranks : {1, 2, 3, 4, 7}) {
    for (const std::size_t count : {0, 1, 63, 511, 512, 513, 1024, 3000}) {
      for (const float size : {0.0f, 1e-42f, 1e-36f, 1.0f, 1e37f}) {
        for (const bool feedback : {false, true}) {
          auto values = vectors_of(ranks, count, size, 1);
          auto residuals = vectors_of(ranks, count, size / 64, 2);
          auto expected_residuals = residuals;
          const auto expected = expected_mean(values, expected_residuals, feedback);
          ASSERT_FALSE(quantized_mean(parts_of(values, residuals, feedback), count));
          for (std::size_t r = 0; r < ranks; ++r) {
            ASSERT_TRUE(same_bits(values[r], expected))
                << "rank " << r << " of " << ranks << ", " << count << " of size " << size;
            ASSERT_TRUE(same_bits(residuals[r], expected_residuals[r])) << r;
          }
        }
      }
    }
  }
}

TEST_P(QuantizedMeanOnTarget, EqualsWhatTravellingCodesGive) {
  constexpr std::size_t ranks = 3;
  constexpr std::size_t count = 1700;
  auto values = vectors_of(ranks, count, 1, 3);
  auto residuals = vectors_of(ranks, count, 0.01f, 4);
  auto kept = residuals;
  const std::size_t chunks = quantized_chunks(count);
  std::vector<QuantizedChunk> codes(ranks * chunks);
  for (std::size_t r = 0; r < ranks; ++r) {
    quantize_with_feedback(values[r], kept[r], std::span(codes).subspan(r * chunks, chunks));
  }
  std::vector<QuantizedChunk> mean(chunks);
  quantize_mean(codes, ranks, mean);
  std::vector<float> expected(count);
  dequantize(mean, expected);

  quantized_mean(parts_of(values, residuals, true), count);
  for (std::size_t r = 0; r < ranks; ++r) {
    EXPECT_TRUE(same_bits(values[r], expected));
    EXPECT_TRUE(same_bits(residuals[r], kept[r]));
  }
}

TEST_P(QuantizedMeanOnTarget, SaysWhoseAndWhichElementIsNotFinite) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const bool feedback : {false, true}) {
    for (const std::size_t count : {1024, 1100}) {
      auto values = vectors_of(3, count, 1, 5);
      auto residuals = vectors_of(3, count, 0.01f, 6);
      const auto before = values;
      values[0][count - 1] = std::numeric_limits<float>::quiet_NaN();
      values[2][40] = -infinity;
      values[2][30] = infinity;
      values[1][35] = infinity;
      const auto bad = quantized_mean(parts_of(values, residuals, feedback), count);
      ASSERT_TRUE(bad.has_value());
      EXPECT_EQ(bad->element, 35U);
      EXPECT_EQ(bad->rank, 1);
      // The chunk keeps its values, and those that were finite say theirs.
      EXPECT_EQ(values[0][50], before[0][50]);
      EXPECT_EQ(residuals[1][50] == 0, feedback);
      if (feedback) {
        EXPECT_LE(std::fabs(residuals[0][50]), 0.02f);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, QuantizedMeanOnTarget,
                         ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& target) { return hwy::TargetName(target.param); });

}  // namespace
}  // namespace lockstep::kernels
