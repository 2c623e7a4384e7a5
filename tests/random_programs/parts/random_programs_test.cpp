// The parts of random programs: what is generated, and how outcomes are compared.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/random_programs/outcome.h"
#include "tests/random_programs/rules.h"

namespace lockstep::random_programs {
namespace {

using ::testing::HasSubstr;

TEST(Generate, GivesLegalProgramsOfEveryOperation) {
  std::set<std::size_t> kinds;
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    const auto program = generate(seed, false);
    EXPECT_TRUE(is_legal(program)) << to_text(program);
    for (const auto& operation : program.operations) kinds.insert(operation.index());
  }
  EXPECT_EQ(kinds.size(), std::variant_size_v<Operation>);
}

Expected expected_value(double number) {
  return {.names = {"loss 0"},
          .checks = {Check::exact},
          .values = {{std::vector{number}}, {std::vector{number}}}};
}

Log log_of(double number) { return {{.values = {std::vector{number}}}}; }

TEST(Difference, IsFoundAboveTheTolerance) {
  EXPECT_EQ(difference({expected_value(1)}, {log_of(1), log_of(1 + 1e-13)}), std::nullopt);
  EXPECT_THAT(difference({expected_value(1)}, {log_of(1), log_of(1 + 1e-11)}).value_or(""),
              HasSubstr("operation 0: rank 1: loss 0: got [1.00000000001"));
  EXPECT_THAT(difference({expected_value(1)}, {log_of(1), {}}).value_or(""),
              HasSubstr("rank 1 did not come to it"));
}

TEST(Difference, IsFoundInErrors) {
  const Expected refused{.error = "invalid_argument", .ends = true};
  const auto log = [](const std::string& error, const std::string& text) {
    return Log{{.error = error, .text = text}};
  };
  EXPECT_EQ(difference({refused}, {log("invalid_argument", "rank 0 of 2: no"),
                                   log("invalid_argument", "rank 1 of 2: no")}),
            std::nullopt);
  EXPECT_THAT(difference({refused}, {log("invalid_argument", "no"), log("invalid_argument", "why")})
                  .value_or(""),
              HasSubstr("ranks raise different errors"));
  EXPECT_THAT(
      difference({refused}, {log("communication", "no"), log("communication", "no")}).value_or(""),
      HasSubstr("expected invalid_argument"));
  EXPECT_THAT(difference({{.error = "any", .mentions = "why"}},
                         {log("communication", "no"), log("communication", "no")})
                  .value_or(""),
              HasSubstr("expected it to mention 'why'"));
  EXPECT_THAT(difference({expected_value(1)}, {log_of(1), log("general", "no")}).value_or(""),
              HasSubstr("rank 1: got general: no, expected no error"));
}

TEST(Difference, FollowsARankToTheOperationThatRaisesItsError) {
  const Expected refused{.names = {"loss 0"},
                         .checks = {Check::exact},
                         .values = {{std::vector{1.0}}, {std::vector{1.0}}},
                         .error = "invalid_argument",
                         .may_fail = true,
                         .later = 1U << 1,
                         .ends = true};
  const Outcome error{.error = "invalid_argument", .text = "no"};
  const Outcome value{.values = {std::vector{1.0}}};
  const auto next = expected_value(1);
  EXPECT_EQ(difference({refused, next}, {{error}, {value, error}}), std::nullopt);
  EXPECT_EQ(difference({refused, next}, {{value, value}, {value, value}}), std::nullopt);
  EXPECT_THAT(difference({refused, next}, {{error}, {value, value}}).value_or(""),
              HasSubstr("ranks raise different errors"));
  EXPECT_THAT(difference({refused, next}, {{value, error}, {value, error}}).value_or(""),
              HasSubstr("expected no error"));
}

}  // namespace
}  // namespace lockstep::random_programs
