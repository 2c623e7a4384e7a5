#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "bench/reference/kernels.h"

// The oracle itself is checked against facts of the formats, not against another conversion.
namespace lockstep::inline v0_2::kernels::reference {
namespace {

TEST(Reference, KnowsTheHalvesOfIeee754) {
  EXPECT_EQ(from_f16(0x0001), std::ldexp(1.0f, -24));
  EXPECT_EQ(from_f16(0x03ff), std::ldexp(1023.0f, -24));
  EXPECT_EQ(from_f16(0x0400), std::ldexp(1.0f, -14));
  EXPECT_EQ(from_f16(0x3c00), 1.0f);
  EXPECT_EQ(from_f16(0xc000), -2.0f);
  EXPECT_EQ(from_f16(0x7bff), 65504.0f);
  EXPECT_EQ(from_f16(0xfc00), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(from_f16(0x7c01)));
  EXPECT_EQ(from_bf16(0x3f80), 1.0f);
  EXPECT_EQ(from_bf16(0x0001), std::ldexp(1.0f, -133));
}

TEST(Reference, RoundsToNearestEven) {
  EXPECT_EQ(to_f16(2049.0f), 0x6800);  // between 2048 and 2050
  EXPECT_EQ(to_f16(2051.0f), 0x6802);  // between 2050 and 2052
  EXPECT_EQ(to_f16(65519.996f), 0x7bff);
  EXPECT_EQ(to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(to_f16(1e30f), 0x7c00);
  EXPECT_EQ(to_f16(std::ldexp(1.0f, -25)), 0x0000);  // half the least denormal
  EXPECT_EQ(to_f16(std::ldexp(1.5f, -25)), 0x0001);
  EXPECT_EQ(to_f16(std::ldexp(3.0f, -25)), 0x0002);
  EXPECT_EQ(to_f16(-0.0f), 0x8000);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808000U)), 0x3f80);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f818000U)), 0x3f82);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808001U)), 0x3f81);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_TRUE(std::isnan(from_bf16(to_bf16(std::bit_cast<float>(0x7f800001U)))));
}

}  // namespace
}  // namespace lockstep::kernels::reference
