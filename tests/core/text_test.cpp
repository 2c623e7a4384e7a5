#include "core/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "core/system/files.h"
#include "tests/other_numbers.h"

namespace lockstep::detail {
namespace {

TEST(Text, HasTheSameNumbersUnderEveryLocale) {
  const testing::OtherNumbers other;
  std::ostringstream plain;
  plain << 1234567;
  ASSERT_EQ(plain.str(), "1.234.567") << "the test's own locale";
  EXPECT_EQ(concat("rank ", 1234567, ' ', 0.5, ' ', -12345.25, ' ', 1e-7, ' ', std::size_t{4096}),
            "rank 1234567 0.5 -12345.2 1e-07 4096");
  EXPECT_EQ(hex(0x12345678), "12345678");
  EXPECT_EQ(hex(0x1f, 4), "001f");
  EXPECT_EQ(fixed(1234567.125, 2), "1234567.12");
  EXPECT_EQ(shortest(1234567.1), "1234567.1");
}

TEST(Text, CountsOneThingAndSeveral) {
  EXPECT_EQ(plural(0, "rank"), "0 ranks");
  EXPECT_EQ(plural(1, "rank"), "1 rank");
  EXPECT_EQ(plural(std::size_t{2}, "NUMA node"), "2 NUMA nodes");
}

TEST(Text, RunsHaveTheSameIdsUnderEveryLocale) {
  const testing::OtherNumbers other;
  EXPECT_THAT(new_run_id(), ::testing::MatchesRegex("[0-9a-f]+"));
  EXPECT_EQ(new_run_id().size(), 16U);
}

}  // namespace
}  // namespace lockstep::detail
