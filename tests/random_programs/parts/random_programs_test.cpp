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

/// Two ranks, one model of one parameter, plain SGD of rate 0.1.
Program small(FrontEnd front_end, std::vector<Operation> operations) {
  Program program{.seed = 1, .ranks = 2, .width = 1, .units = {}, .operations = {}};
  program.units.push_back(
      {.front_end = front_end, .synchronisation = {}, .layers = {Layer::scale}});
  program.operations = std::move(operations);
  return program;
}

Backward backward(std::uint64_t data, bool local) {
  return {.paths = {{0}}, .data = data, .local = local ? 1U : 0U, .layers = {{1}, {1}}};
}

/// The only element of a value of a rank after an operation.
double value(const Program& program, std::size_t operation, int rank, const std::string& name) {
  const auto expected = expect(program).at(operation);
  const auto found = std::find(expected.names.begin(), expected.names.end(), name);
  return expected.values[static_cast<std::size_t>(rank)]
      .at(static_cast<std::size_t>(found - expected.names.begin()))
      .value()
      .at(0);
}

const std::string gradient = "unit 0: gradient 0";
const std::string parameter = "unit 0: parameter 0";

class Means : public ::testing::Test {
 protected:
  /// A rank's own gradient of some data.
  double own(std::uint64_t data, int rank) const {
    return value(small(FrontEnd::optimizer, {backward(data, true)}), 0, rank, gradient);
  }
  double mean(std::uint64_t data) const { return (own(data, 0) + own(data, 1)) / 2; }
};

TEST_F(Means, AreTakenBySynchronisedBackwards) {
  for (const auto front_end : {FrontEnd::data_parallel, FrontEnd::optimizer}) {
    const auto program = small(front_end, {backward(3, false), backward(4, true)});
    EXPECT_NE(own(3, 0), own(3, 1));
    for (const int rank : {0, 1}) {
      EXPECT_NEAR(value(program, 0, rank, gradient), mean(3), 1e-14);
      EXPECT_NEAR(value(program, 1, rank, gradient), mean(3) + own(4, rank), 1e-14);
    }
  }
}

TEST_F(Means, AreTakenByAStepOfWhatIsLocal) {
  const Step step{.unit = 0};
  const ZeroGrad zero{.unit = 0, .by = ZeroGrad::By::optimizer, .set_to_none = true};
  const auto accumulated =
      small(FrontEnd::optimizer, {backward(3, false), backward(4, true), step});
  const auto zeroed =
      small(FrontEnd::optimizer, {backward(3, false), zero, backward(4, true), step});
  for (const int rank : {0, 1}) {
    EXPECT_NEAR(value(accumulated, 2, rank, gradient), mean(3) + mean(4), 1e-14);
    EXPECT_NEAR(value(zeroed, 3, rank, gradient), mean(4), 1e-14);
    EXPECT_NEAR(value(zeroed, 3, rank, parameter),
                value(zeroed, 0, rank, parameter) - 0.1 * mean(4), 1e-14);
  }
}

TEST_F(Means, CountARankWithoutALossAsZero) {
  auto op = backward(3, false);
  op.without_loss = 1U << 1;
  const auto program = small(FrontEnd::optimizer, {op, Step{.unit = 0}});
  for (const int rank : {0, 1})
    EXPECT_NEAR(value(program, 1, rank, gradient), own(3, 0) / 2, 1e-14);
}

TEST_F(Means, AreWeighted) {
  auto op = backward(3, false);
  op.weights = {1, 3};
  const auto program = small(FrontEnd::data_parallel, {op});
  EXPECT_NEAR(value(program, 0, 0, gradient), (own(3, 0) + 3 * own(3, 1)) / 4, 1e-14);
}

TEST_F(Means, AreOfGradientsFromAllLossesThatACollectiveReaches) {
  auto op = backward(3, false);
  op.collective = Collective::all_reduce;
  const auto program = small(FrontEnd::data_parallel, {op, op});
  // Both ranks differentiate the same sum of outputs: their parameters count alike in both losses.
  const double both = value(program, 0, 0, gradient);
  EXPECT_NE(both, mean(3));
  EXPECT_NEAR(value(program, 0, 1, gradient), both, 1e-14);
  EXPECT_NEAR(value(program, 1, 0, gradient), 2 * both, 1e-14);
}

TEST_F(Means, StayInGradientsThatAreKept) {
  const Keep keep{.unit = 0, .how = Keep::How::view, .parameters = 1};
  const ZeroGrad zero{.unit = 0, .by = ZeroGrad::By::module, .set_to_none = true};
  const auto program =
      small(FrontEnd::optimizer, {backward(3, false), keep, zero, backward(4, false)});
  for (const int rank : {0, 1}) {
    EXPECT_NEAR(value(program, 3, rank, "unit 0: kept gradient 0"), mean(3), 1e-14);
    EXPECT_NEAR(value(program, 3, rank, gradient), mean(4), 1e-14);
  }
}

TEST_F(Means, TakeTheWeightsThatWereSetBeforeAccumulation) {
  const Weigh weigh{.unit = 0, .weights = {1, 3}};
  const auto program =
      small(FrontEnd::optimizer, {weigh, backward(3, true), weigh, backward(4, false)});
  const auto sum = [&](int rank) { return own(3, rank) + own(4, rank); };
  EXPECT_NEAR(value(program, 3, 0, gradient), (sum(0) + 3 * sum(1)) / 4, 1e-14);
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
