#include <limits>

#include "tests/kernels/guarded.h"
#include "tests/kernels/quantized.h"

namespace lockstep::inline v0_2::kernels {
namespace {

constexpr std::size_t quantize_counts[] = {0, 1, 2, 63, 64, 65, 511, 512, 513, 1024, 3000};

std::vector<float> random_values(std::size_t count, float size, std::size_t seed = 0) {
  std::mt19937_64 random(1000 * seed + count);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (auto& value : values) value = size * normal(random);
  return values;
}

/// Sizes of values, from denormals to what fills the range.
constexpr float sizes[] = {0, 1e-42f, 1e-36f, 1e-3f, 1, 5e37f};

bool equal(const std::vector<QuantizedChunk>& a, const std::vector<QuantizedChunk>& b) {
  return std::ranges::equal(std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
}

class QuantizeOnTarget : public OnTarget {};

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

INSTANTIATE_TEST_SUITE_P(Cpu, QuantizeOnTarget, every_target(), target_name);

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

RankVectors vectors_of(std::size_t ranks, std::size_t count, float size, std::size_t seed) {
  RankVectors all;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    all.push_back(random_values(count, size, 10 * seed + rank));
  }
  return all;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return std::ranges::equal(a, b, {}, std::bit_cast<std::uint32_t, float>,
                            std::bit_cast<std::uint32_t, float>);
}

/// Copies of the vectors, each at another misalignment.
std::vector<Buffer> buffers_of(const RankVectors& vectors) {
  std::vector<Buffer> buffers;
  for (const auto& vector : vectors) {
    const auto misalignment = float_misalignments[(vector.size() + buffers.size()) % 5];
    buffers.emplace_back(vector.size() * sizeof(float), misalignment)
        .assign(std::as_bytes(std::span(vector)));
  }
  return buffers;
}

std::vector<QuantizedPart> parts_of(std::vector<Buffer>& values, std::vector<Buffer>& residuals,
                                    bool feedback) {
  std::vector<QuantizedPart> parts;
  for (std::size_t r = 0; r < values.size(); ++r) {
    parts.push_back({.values = values[r].as<float>().data(),
                     .residual = feedback ? residuals[r].as<float>().data() : nullptr});
  }
  return parts;
}

/// Computes what quantized_mean() does, by one kernel after another.
void mean_in_steps(std::vector<Buffer>& values, std::vector<Buffer>& residuals, bool feedback) {
  const auto chunks = quantized_chunks(values[0].as<float>().size());
  std::vector<QuantizedChunk> inputs(values.size() * chunks), mean(chunks);
  for (std::size_t r = 0; r < values.size(); ++r) {
    const auto own = std::span(inputs).subspan(r * chunks, chunks);
    const auto from = values[r].as<float>();
    feedback ? quantize_with_feedback(from, residuals[r].as<float>(), own) : quantize(from, own);
  }
  quantize_mean(inputs, values.size(), mean);
  for (auto& of_rank : values) dequantize(mean, of_rank.as<float>());
}

TEST_P(QuantizeOnTarget, GivesTheMeanOfTheReferenceInEveryBit) {
  for (const std::size_t ranks : {1, 2, 3, 4, 7}) {
    for (const std::size_t count : {0, 1, 63, 511, 512, 513, 1024, 3000}) {
      for (const float size : {0.0f, 1e-42f, 1e-36f, 1.0f, 1e37f}) {
        for (const bool feedback : {false, true}) {
          const auto before = vectors_of(ranks, count, size, 1);
          const auto residuals_before = vectors_of(ranks, count, size / 64, 2);
          auto expected_residuals = residuals_before;
          const auto expected = expected_mean(before, expected_residuals, feedback);
          for (const bool in_steps : {false, true}) {
            auto values = buffers_of(before);
            auto residuals = buffers_of(residuals_before);
            if (in_steps) {
              mean_in_steps(values, residuals, feedback);
            } else {
              ASSERT_FALSE(quantized_mean(parts_of(values, residuals, feedback), count));
            }
            for (std::size_t r = 0; r < ranks; ++r) {
              ASSERT_TRUE(same_bits(values[r].as<float>(), expected))
                  << "rank " << r << " of " << ranks << ", " << count << " of size " << size;
              ASSERT_TRUE(same_bits(residuals[r].as<float>(), expected_residuals[r])) << r;
              ASSERT_TRUE(values[r].guards_untouched() && residuals[r].guards_untouched()) << r;
            }
          }
        }
      }
    }
  }
}

TEST_P(QuantizeOnTarget, SaysWhoseAndWhichElementOfAMeanIsNotFinite) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const bool feedback : {false, true}) {
    for (const std::size_t count : {1024, 1100}) {
      const auto before = vectors_of(3, count, 1, 5);
      auto values = buffers_of(before);
      auto residuals = buffers_of(vectors_of(3, count, 0.01f, 6));
      values[0].as<float>()[count - 1] = std::numeric_limits<float>::quiet_NaN();
      values[2].as<float>()[40] = -infinity;
      values[2].as<float>()[30] = infinity;
      values[1].as<float>()[35] = infinity;
      const auto bad = quantized_mean(parts_of(values, residuals, feedback), count);
      ASSERT_TRUE(bad.has_value());
      EXPECT_EQ(bad->element, 35U);
      EXPECT_EQ(bad->rank, 1);
      // The chunk keeps its values, and those that were finite say theirs.
      EXPECT_EQ(values[0].as<float>()[50], before[0][50]);
      EXPECT_EQ(residuals[1].as<float>()[50] == 0, feedback);
      if (feedback) {
        EXPECT_LE(std::fabs(residuals[0].as<float>()[50]), 0.02f);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::kernels
