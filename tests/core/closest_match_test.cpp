#include "lockstep/closest_match.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lockstep {
namespace {

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

TEST(ClosestMatch, IsTheClosestAndOfEqualsTheFirst) {
  const std::vector<std::string> near{"--trade", "--trace", "--track"};
  EXPECT_EQ(closest_match("--trace", near), "--trace");
  EXPECT_EQ(closest_match("--tracd", near), "--trace");
}

}  // namespace
}  // namespace lockstep
