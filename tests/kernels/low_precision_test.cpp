#include "kernels/low_precision.h"

#include <array>
#include <cstring>
#include <limits>

#include "bench/reference/kernels.h"
#include "kernels/copy.h"
#include "tests/kernels/guarded.h"

namespace lockstep::inline v0_2::kernels {
namespace {

using reference::from_bf16;
using reference::to_bf16;
using reference::to_f16;
using Counter = std::array<std::uint32_t, 4>;

/// Philox4x32-10 as the paper states it.
Counter philox(Counter c, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const auto product0 = std::uint64_t{0xd2511f53} * c[0];
    const auto product2 = std::uint64_t{0xcd9e8d57} * c[2];
    c = {static_cast<std::uint32_t>(product2 >> 32) ^ c[1] ^ key0,
         static_cast<std::uint32_t>(product2),
         static_cast<std::uint32_t>(product0 >> 32) ^ c[3] ^ key1,
         static_cast<std::uint32_t>(product0)};
    key0 += 0x9e3779b9;
    key1 += 0xbb67ae85;
  }
  return c;
}

/// 16 random bits of an element: blocks of 512 elements have 64 counters.
std::uint32_t random_bits(const RandomStream& stream, std::size_t element) {
  const std::size_t in_block = element % 512;
  const auto words = philox({static_cast<std::uint32_t>(element / 512 * 64 + in_block % 64),
                             stream.tensor, stream.step, stream.parameter},
                            0, 0);
  const auto word = words[in_block / 128];
  return in_block / 64 % 2 == 0 ? word & 0xffff : word >> 16;
}

class LowPrecisionOnTarget : public OnTarget {};

constexpr std::size_t counts[] = {0, 1, 7, 63, 511, 512, 513, 1500};

TEST(Philox, GivesThePublishedNumbers) {
  // Random123's kat_vectors.
  EXPECT_EQ(philox({0, 0, 0, 0}, 0, 0), (Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Reference, RoundsToTheNearestBfloat16) {
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808000U)), 0x3f80);  // ties
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f818000U)), 0x3f82);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808001U)), 0x3f81);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_TRUE(std::isnan(from_bf16(to_bf16(std::bit_cast<float>(0x7f800001U)))));
}

TEST_P(LowPrecisionOnTarget, RoundsStochasticallyAsTheReference) {
  const RandomStream stream{.step = 12, .parameter = 3, .tensor = 2};
  for (const auto count : counts) {
    for (const std::size_t first : {0, 1, 500, 512, 1025, 40'000'007}) {
      const auto values = values_of_all_kinds(count, count + first);
      Buffer rounded(count * 2, 2);
      round_stochastically(values, stream, first, rounded.as<std::uint16_t>().data());
      for (std::size_t i = 0; i < count; ++i) {
        const auto bits = std::bit_cast<std::uint32_t>(values[i]);
        const auto expected = std::isnan(values[i]) ? (bits | 0x400000) >> 16
                                                    : (bits + random_bits(stream, first + i)) >> 16;
        ASSERT_EQ(rounded.as<std::uint16_t>()[i], expected) << count << ' ' << first << ' ' << i;
      }
      EXPECT_TRUE(rounded.guards_untouched());
    }
  }
}

TEST_P(LowPrecisionOnTarget, CompensatesAsTheReference) {
  for (const auto count : counts) {
    const auto values = values_of_all_kinds(count, count);
    Buffer rounded(count * 2, 2);
    Buffer compensation(count * 2, 6);
    auto* high = rounded.as<std::uint16_t>().data();
    auto* low = compensation.as<std::uint16_t>().data();
    round_with_compensation(values, high, low);
    Buffer sums(count * 4, 4);
    add_compensation(high, low, sums.as<float>());
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(high[i], to_bf16(values[i])) << i;
      const float rest = std::isfinite(from_bf16(high[i])) ? values[i] - from_bf16(high[i]) : 0;
      ASSERT_EQ(from_bf16(low[i]), from_bf16(to_bf16(rest))) << i;
      const float sum = sums.as<float>()[i];
      if (std::isnan(values[i])) {
        ASSERT_TRUE(std::isnan(sum));
      } else if (std::abs(values[i]) > 1e-30f && std::abs(values[i]) < 1e38f) {
        ASSERT_NEAR(sum / values[i], 1, 0x1p-16f) << values[i];
      }
    }
    EXPECT_TRUE(rounded.guards_untouched() && compensation.guards_untouched() &&
                sums.guards_untouched());
  }
}

TEST_P(LowPrecisionOnTarget, RefreshesMastersThatNoLongerRoundToTheParameter) {
  for (const auto dtype : {DType::bf16, DType::f16}) {
    const auto nearest = [&](float value) {
      return dtype == DType::bf16 ? to_bf16(value) : to_f16(value);
    };
    for (const auto count : counts) {
      const auto values = values_of_all_kinds(count, count);
      std::vector<std::uint16_t> parameters(count);
      for (std::size_t i = 0; i < count; ++i) {
        parameters[i] = nearest(values[i]);
        if (i % 3 == 1) parameters[i] = dtype == DType::bf16 ? 0x3f80 : 0x3c00;  // 1
      }
      Buffer masters(count * 4, 4);
      std::copy(values.begin(), values.end(), masters.as<float>().begin());
      refresh_masters(dtype, parameters.data(), masters.as<float>());
      for (std::size_t i = 0; i < count; ++i) {
        const float got = masters.as<float>()[i];
        if (std::isnan(values[i])) {
          ASSERT_TRUE(i % 3 == 1 ? got == 1 : std::isnan(got)) << i;
          continue;
        }
        const bool is_changed = nearest(values[i]) != parameters[i];
        ASSERT_EQ(got, is_changed ? 1.0f : values[i]) << i;
      }
      EXPECT_TRUE(masters.guards_untouched());
    }
  }
}

TEST_P(LowPrecisionOnTarget, IgnoresTheCompensationOfAnotherValue) {
  const std::vector<std::uint16_t> values{to_bf16(1), to_bf16(-3), to_bf16(0), to_bf16(100)};
  const std::vector<std::uint16_t> rests{to_bf16(0x1p-8f), to_bf16(0x1p-6f), to_bf16(1e-9f),
                                         to_bf16(-0.25f)};
  std::vector<float> sums(4);
  add_compensation(values.data(), rests.data(), sums);
  EXPECT_EQ(sums, (std::vector<float>{1 + 0x1p-8f, -3, 0, 99.75f}));
}

INSTANTIATE_TEST_SUITE_P(Cpu, LowPrecisionOnTarget, every_target(), target_name);

/// No two cache lines of the same bytes.
std::vector<std::byte> some_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::byte>(i * 0x9e3779b97f4a7c15 >> 56);
  }
  return bytes;
}

void check(std::size_t bytes, std::size_t from, std::size_t to, std::size_t whole) {
  const auto contents = some_bytes(bytes);
  Buffer source(bytes, from);
  Buffer target(bytes, to);
  source.assign(contents);
  copy_part(target.data(), source.data(), bytes, whole);
  EXPECT_TRUE(std::ranges::equal(target.contents(), contents))
      << bytes << " bytes, " << from << " to " << to;
  EXPECT_TRUE(target.guards_untouched()) << bytes << " bytes, " << from << " to " << to;
}

void check(std::size_t bytes, std::size_t from, std::size_t to) { check(bytes, from, to, bytes); }

TEST(Copy, EveryLengthAndAlignment) {
  for (const std::size_t bytes : {0, 1, 63, 64, 65, 1000}) {
    for (const std::size_t misalignment : {0, 1, 8, 60}) {
      check(bytes, 0, misalignment);
      check(bytes, misalignment, 8, copied_past_caches);  // a part of a long copy
    }
  }
  for (const std::size_t more : {0, 1, 63, 64, 65, 127}) {
    const auto bytes = copied_past_caches - 64 + more;
    check(bytes, 0, 0);
    check(bytes, 4, 60);
    check(bytes, 1, 33);
  }
}

TEST(Copy, ToSeveralPlacesAndOntoItself) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{40'000},
                                  copied_past_caches - 1, copied_past_caches + 7}) {
    const auto contents = some_bytes(bytes);
    Buffer source(bytes, 4);
    Buffer first(bytes, 0);
    Buffer second(bytes, 33);
    source.assign(contents);
    const std::array places{first.data(), source.data(), second.data()};
    copy_bytes(places, source.data(), bytes);
    for (auto* target : {&first, &source, &second}) {
      EXPECT_TRUE(std::ranges::equal(target->contents(), contents)) << bytes;
      EXPECT_TRUE(target->guards_untouched()) << bytes;
    }
  }
  auto bytes = some_bytes(copied_past_caches);
  const auto before = bytes;
  copy_bytes(bytes.data(), bytes.data(), bytes.size());
  EXPECT_EQ(std::memcmp(bytes.data(), before.data(), bytes.size()), 0);
  copy_bytes(nullptr, nullptr, 0);
}

}  // namespace
}  // namespace lockstep::kernels
