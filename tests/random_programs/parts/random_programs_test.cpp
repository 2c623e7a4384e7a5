// The parts of random programs: what is generated, the oracle's means, how outcomes are compared.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "tests/random_programs/generate.h"
#include "tests/random_programs/oracle.h"
#include "tests/random_programs/outcome.h"
#include "tests/random_programs/search.h"

namespace lockstep::random_programs {
namespace {

using ::testing::HasSubstr;

const std::vector<Category> nothing{};

TEST(Generate, GivesTheSameProgramForASeed) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    EXPECT_EQ(to_text(generate(seed, nothing)), to_text(generate(seed, nothing)));
  }
  EXPECT_NE(to_text(generate(1, nothing)), to_text(generate(2, nothing)));
}

TEST(Generate, GivesLegalProgramsOfEveryOperation) {
  std::set<std::size_t> kinds;
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    const auto program = generate(seed, nothing);
    EXPECT_TRUE(is_legal(program, nothing)) << to_text(program);
    for (const auto& operation : program.operations) kinds.insert(operation.index());
  }
  EXPECT_EQ(kinds.size(), std::variant_size_v<Operation>);
}

TEST(Generate, LeavesCategoriesOut) {
  const auto without = parse_categories("hooks,hand,poke");
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    for (const auto& operation : generate(seed, without).operations) {
      EXPECT_FALSE(std::holds_alternative<Load>(operation));
      EXPECT_FALSE(std::holds_alternative<Convert>(operation));
      EXPECT_FALSE(std::holds_alternative<SetGradient>(operation));
    }
  }
  EXPECT_THROW(parse_categories("hook"), std::invalid_argument);
  EXPECT_EQ(parse_categories("collectives"), std::vector{Category::collectives});
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
  const Expected refused{.error = "InvalidArgument", .ends = true};
  const auto log = [](const std::string& error, const std::string& text) {
    return Log{{.error = error, .text = text}};
  };
  EXPECT_EQ(difference({refused}, {log("InvalidArgument", "rank 0 of 2: no"),
                                   log("InvalidArgument", "rank 1 of 2: no")}),
            std::nullopt);
  EXPECT_THAT(difference({refused}, {log("InvalidArgument", "no"), log("InvalidArgument", "why")})
                  .value_or(""),
              HasSubstr("ranks raise different errors"));
  EXPECT_THAT(difference({refused}, {log("CommError", "no"), log("CommError", "no")}).value_or(""),
              HasSubstr("expected InvalidArgument"));
  EXPECT_THAT(difference({{.error = "any", .mentions = "why"}},
                         {log("CommError", "no"), log("CommError", "no")})
                  .value_or(""),
              HasSubstr("expected it to mention 'why'"));
  EXPECT_THAT(difference({expected_value(1)}, {log_of(1), log("Error", "no")}).value_or(""),
              HasSubstr("rank 1: got Error: no, expected no error"));
}

TEST(Difference, FollowsARankToTheOperationThatRaisesItsError) {
  const Expected refused{.names = {"loss 0"},
                         .checks = {Check::exact},
                         .values = {{std::vector{1.0}}, {std::vector{1.0}}},
                         .error = "InvalidArgument",
                         .may_fail = true,
                         .later = 1U << 1,
                         .ends = true};
  const Outcome error{.error = "InvalidArgument", .text = "no"};
  const Outcome value{.values = {std::vector{1.0}}};
  const auto next = expected_value(1);
  EXPECT_EQ(difference({refused, next}, {{error}, {value, error}}), std::nullopt);
  EXPECT_EQ(difference({refused, next}, {{value, value}, {value, value}}), std::nullopt);
  EXPECT_THAT(difference({refused, next}, {{error}, {value, value}}).value_or(""),
              HasSubstr("ranks raise different errors"));
  EXPECT_THAT(difference({refused, next}, {{value, error}, {value, error}}).value_or(""),
              HasSubstr("expected no error"));
}

TEST(Logs, AreReadAsTheyWereWritten) {
  std::stringstream stream;
  const Log log{{.values = {std::vector{1.0, 2.0}, std::nullopt, std::vector<double>{}}},
                {.error = "CommError", .text = "why"}};
  write(stream, log);
  const auto read = read_log(stream).value();
  ASSERT_EQ(read.size(), 2U);
  EXPECT_EQ(read[0].values, log[0].values);
  EXPECT_EQ(read[1].error, "CommError");
  EXPECT_EQ(read[1].text, "why");
  EXPECT_FALSE(read_log(stream).has_value());
}

TEST(Sources, AreReadAsTheyWereWritten) {
  const auto sources = parse_sources("17 4:0-2,5");
  ASSERT_EQ(sources.size(), 2U);
  EXPECT_EQ(to_text(sources[0]), "17");
  EXPECT_EQ(sources[1].kept, (std::vector{0, 1, 2, 5}));
  EXPECT_EQ(to_text(sources[1]), "4:0-2,5");
}

TEST(Shrink, KeepsTheOperationsThatAFailureNeeds) {
  // Fails, in effect, as soon as there is a backward after a step.
  const auto fails = [](const Source& source) {
    bool step = false;
    for (const auto& operation : program_of(source, nothing).operations) {
      step = step || std::holds_alternative<Step>(operation);
      if (step && std::holds_alternative<Backward>(operation)) return true;
    }
    return false;
  };
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Source source{.seed = seed};
    if (!fails(source)) continue;
    const auto smallest = shrink(source, nothing, fails);
    EXPECT_TRUE(fails(smallest));
    EXPECT_TRUE(is_legal(program_of(smallest, nothing), nothing));
    EXPECT_LE(smallest.kept.size(), 4U);
  }
}

}  // namespace
}  // namespace lockstep::random_programs
