#include "core/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <sstream>
#include <vector>

#include "core/numeric/digest.h"
#include "core/system/files.h"
#include "lockstep/closest_match.h"
#include "tests/other_numbers.h"

namespace lockstep::inline v0_2::detail {
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

TEST(Text, RunIdsAreRandomAndHexadecimalUnderEveryLocale) {
  const testing::OtherNumbers other;
  EXPECT_THAT(new_run_id(), ::testing::ContainsRegex("^[0-9a-f]{16}$"));
  EXPECT_NE(new_run_id(), new_run_id());
}

TEST(Digest, OfNothingIsWhatXxh3Publishes) { EXPECT_EQ(digest({}), 0x2d06800538d394c2); }

TEST(Digest, ChangesWithEveryBit) {
  std::vector<std::byte> bytes(300, std::byte{0x5a});
  const auto whole = digest(bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes[i] ^= std::byte{1} << bit;
      EXPECT_NE(digest(bytes), whole) << "byte " << i << ", bit " << bit;
      bytes[i] ^= std::byte{1} << bit;
    }
  }
  EXPECT_NE(digest(std::span(bytes).first(299)), whole);
}

TEST(Digest, DoesNotDependOnWhereTheBytesLie) {
  std::vector<std::byte> bytes(1100);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 50);
  // The pattern repeats every 50 bytes.
  EXPECT_EQ(digest(std::span(bytes).subspan(0, 1000)), digest(std::span(bytes).subspan(50, 1000)));
}

const std::vector<std::string> commands{"run", "two-hosts", "bench", "plan", "doctor", "report"};
const std::vector<std::string> options{"-n", "--epochs", "--batch-size", "--lr", "--log-dir"};

TEST(ClosestMatch, IsTheWordThatWasMeant) {
  EXPECT_EQ(closest_match("rnu", commands), "run");
  EXPECT_EQ(closest_match("runn", commands), "run");
  EXPECT_EQ(closest_match("docter", commands), "doctor");
  EXPECT_EQ(closest_match("PLAN", commands), "plan");
  EXPECT_EQ(closest_match("two_hosts", commands), "two-hosts");
  EXPECT_EQ(closest_match("--epohcs", options), "--epochs");
  EXPECT_EQ(closest_match("--epoch", options), "--epochs");
  EXPECT_EQ(closest_match("-epochs", options), "--epochs");
  EXPECT_EQ(closest_match("--batchsize", options), "--batch-size");
  EXPECT_EQ(closest_match("--btach-szie", options), "--batch-size");
  const std::vector<std::string> near{"--trade", "--trace", "--track"};
  EXPECT_EQ(closest_match("--trace", near), "--trace");
  EXPECT_EQ(closest_match("--tracd", near), "--trace");
}

TEST(ClosestMatch, IsEmptyWhereNoneIsClose) {
  for (const char* word : {"foo", "walk", "", "-", "--", "x", "reports-of-all-runs"}) {
    EXPECT_EQ(closest_match(word, commands), "") << word;
  }
  EXPECT_EQ(closest_match("--nonsense", options), "");
  EXPECT_EQ(closest_match("-m", options), "") << "any short option would be close";
  EXPECT_EQ(closest_match("run", {}), "");
  EXPECT_EQ(closest_match(std::string(100'000, 'n'), commands), "");
}

}  // namespace
}  // namespace lockstep::detail
