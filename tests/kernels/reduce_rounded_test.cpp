#include <cstring>

#include "bench/reference/kernels.h"
#include "core/system/denormals_guard.h"
#include "core/text.h"
#include "kernels/reduce.h"
#include "lockstep/denormals.h"
#include "tests/kernels/guarded.h"

namespace lockstep::inline v0_2::kernels {
namespace {

void expect_equal(Buffer& buffer, const std::vector<float>& expected, const std::string& what) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const float got = buffer.as<float>()[i];
    ASSERT_TRUE(std::memcmp(&got, &expected[i], sizeof got) == 0 ||
                (std::isnan(got) && std::isnan(expected[i])))
        << what << ", element " << i << ": " << got << ", expected " << expected[i];
  }
  ASSERT_TRUE(buffer.guards_untouched()) << what;
}

/// Rounded, reduced and widened where values are: halves at their front, the result's at their
/// back.
void reduce_in_steps(const Wire& wire, ReduceOp op, std::vector<Buffer>& buffers,
                     std::size_t count) {
  std::vector<const std::byte*> inputs;
  for (auto& buffer : buffers) {
    round_to_halves(wire, op, buffers.size(), buffer.data(), buffer.data(), count);
    inputs.push_back(buffer.data());
  }
  std::byte* result = buffers[0].data() + count * sizeof(std::uint16_t);
  reduce_halves(wire, op, inputs, {&result, 1}, count);
  widen_halves(wire, result, buffers[0].data(), count);
}

void check(const Wire& wire, ReduceOp op, std::size_t ranks, std::size_t count,
           std::size_t misalignment, std::mt19937_64& random) {
  const auto what = lockstep::detail::concat(name(wire.dtype), " ", name(op), " of ", ranks, " x ",
                                             count, ", clip ", wire.clip, ", predivide ",
                                             wire.predivide, " at +", misalignment);
  std::vector<std::vector<float>> original;
  std::vector<std::span<const float>> spans;
  std::vector<Buffer> buffers;
  for (std::size_t i = 0; i < ranks; ++i) {
    original.push_back(values_of_all_kinds(count, random()));
    auto& buffer = buffers.emplace_back(count * sizeof(float), misalignment * i % 64);
    std::copy(original[i].begin(), original[i].end(), buffer.as<float>().begin());
  }
  spans.assign(original.begin(), original.end());
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  for (auto& buffer : buffers) {
    inputs.push_back(buffer.data());
    outputs.push_back(buffer.data());
  }
  reduce_rounded(wire, op, inputs, outputs, count);

  std::vector<float> expected(count);
  reference::reduce_rounded(wire, op, spans, expected);
  for (auto& buffer : buffers) expect_equal(buffer, expected, what);

  for (std::size_t i = 0; i < ranks; ++i) {
    std::copy(original[i].begin(), original[i].end(), buffers[i].as<float>().begin());
  }
  reduce_in_steps(wire, op, buffers, count);
  expect_equal(buffers[0], expected, what + " in steps");
}

class RoundedOnTarget : public OnTarget {};

TEST_P(RoundedOnTarget, EqualsTheReferenceInEveryBit) {
  std::mt19937_64 random(1);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const float clip : {0.0f, 0.75f, 1e5f}) {
      for (const bool predivide : {false, true}) {
        for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
          for (const std::size_t ranks : {1, 2, 3, 4, 7}) {
            for (const std::size_t count : {0, 1, 7, 8, 15, 16, 17, 63, 64, 65, 1000}) {
              check({.dtype = dtype, .clip = clip, .predivide = predivide}, op, ranks, count,
                    float_misalignments[count % 5], random);
              if (HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
}

/// The mean of two equal values on a wire of that dtype, while denormals are kept or flushed.
float mean_of_two(DType dtype, float value, bool flush) {
  const lockstep::detail::DenormalsGuard guard(flush);
  const auto* input = reinterpret_cast<const std::byte*>(&value);
  float mean = 0;
  auto* output = reinterpret_cast<std::byte*>(&mean);
  const std::byte* inputs[] = {input, input};
  reduce_rounded({.dtype = dtype}, ReduceOp::avg, inputs, {&output, 1}, 1);
  return mean;
}

TEST_P(RoundedOnTarget, FlushingKeepsDenormalHalvesAndFlushesDenormalFloats) {
  if (!lockstep::detail::can_flush_denormals)
    GTEST_SKIP() << "this processor is not known to flush";
  const lockstep::detail::DenormalsGuard kept(false);  // of the comparisons
  for (const bool flush : {false, true}) {
    // Denormal in float16, normal in float32.
    for (const float value : {0x1p-24f, 0x1.8p-23f, 0x1.ff8p-15f}) {
      EXPECT_EQ(mean_of_two(DType::f16, value, flush), value) << "flush " << flush;
    }
    EXPECT_EQ(mean_of_two(DType::f16, 0x1p-130f, flush), 0) << "flush " << flush;
    EXPECT_EQ(mean_of_two(DType::bf16, 0x1p-126f, flush), 0x1p-126f) << "flush " << flush;
  }
  // bfloat16 has float32's exponents: what is denormal in one is denormal in the other.
  EXPECT_EQ(mean_of_two(DType::bf16, 0x1p-130f, false), 0x1p-130f);
  EXPECT_EQ(mean_of_two(DType::bf16, 0x1p-130f, true), 0);
}

INSTANTIATE_TEST_SUITE_P(Cpu, RoundedOnTarget, every_target(), target_name);

}  // namespace
}  // namespace lockstep::kernels
