#include "tune/tuning.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tests/matchers.h"

namespace lockstep::testing {
namespace {

using tune::Candidate;
using tune::Trial;

const std::vector<Candidate> on_two_cores{
    {.ranks = 1, .threads = 2}, {.ranks = 1, .threads = 1}, {.ranks = 2, .threads = 1}};

/// Runs of a program whose step takes so many seconds. Each run differs from the one before by 1 %.
struct Runs {
  std::function<double(const Candidate&)> step;
  std::vector<Candidate> made = {};

  std::vector<tune::Row> measure(tune::Search search = {}) {
    return tune::measure(on_two_cores, search, [&](const Candidate& candidate, const auto&) {
      const double noise = made.size() % 2 == 0 ? 0.995 : 1.005;
      made.push_back(candidate);
      const double seconds = step(candidate);
      if (seconds <= 0) return Trial{.problem = "it failed"};
      return Trial{.step = seconds * noise, .steps = 10};
    });
  }
  long count(const Candidate& candidate) const { return std::ranges::count(made, candidate); }
};

TEST(Tuning, MeasuresLayoutsThenVariantsThenWhatWonTogether) {
  const Candidate together{.ranks = 2, .threads = 1, .bucket = 5, .share_memory = true};
  Runs runs{.step = [](const Candidate& one) {
    double seconds = one.ranks == 2 ? 1.0 : 2.0 / one.threads;
    if (one.bucket == 5) seconds *= 0.8;
    if (one.share_memory) seconds *= 0.8;
    return seconds;
  }};
  const auto rows = runs.measure();
  ASSERT_EQ(rows.size(), 3u + 4u + 1u);
  EXPECT_EQ(rows.back().candidate, together);
  EXPECT_EQ(runs.count(together), 3);
  EXPECT_EQ(runs.count(on_two_cores[2]), 6) << "beside its variants again";
  // The rounds alternate.
  EXPECT_THAT(std::vector(runs.made.begin(), runs.made.begin() + 4),
              ElementsAre(on_two_cores[0], on_two_cores[1], on_two_cores[2], on_two_cores[0]));
  const auto verdict = tune::conclude(rows, false);
  ASSERT_NE(verdict.best, nullptr);
  EXPECT_EQ(verdict.best->candidate, together);
  EXPECT_TRUE(verdict.several_ranks_win());
  // Two ranks process two batches in 0.64 s, one process two in 2 s.
  EXPECT_THAT(tune::lines(verdict, 2).front(), HasSubstr("Several ranks win on these 2 cores"));
  EXPECT_NEAR(verdict.best->median(), 2 / 0.64, 0.05);
}

TEST(Tuning, CallsADifferenceWithinTheSpreadEqual) {
  Runs runs{.step = [](const Candidate& one) { return one.bucket == 5 ? 0.995 : 1.0; }};
  const auto rows = runs.measure();
  const auto verdict = tune::conclude(rows, false);
  ASSERT_NE(verdict.best, nullptr);
  EXPECT_EQ(verdict.best->candidate, on_two_cores[2]) << "fewer settings, as none is faster";
}

TEST(Tuning, SaysThatOneProcessWins) {
  // The same global batch: one process 0.55 s with two threads and 1 s with one, two ranks 0.8 s.
  Runs runs{.step = [](const Candidate& one) {
    return one.ranks == 2 ? 0.8 : one.threads == 2 ? 0.55 : 1.0;
  }};
  const auto rows = runs.measure({.global_batch = 1});
  const auto verdict = tune::conclude(rows, true);
  EXPECT_TRUE(verdict.one_process_wins());
  ASSERT_NE(verdict.best, nullptr);
  EXPECT_EQ(verdict.best->candidate, on_two_cores[0]);
  const auto lines = tune::lines(verdict, 2);
  EXPECT_THAT(lines.front(), HasSubstr("One process wins on these 2 cores: 1 rank × 2 threads"));
  // s = 0.1, p = 0.9; 2 ranks: 0.5 + 2·c = 0.8.
  EXPECT_NEAR(verdict.scaling.serial, 0.1, 0.02);
  EXPECT_NEAR(verdict.scaling.added, 0.15, 0.02);
  EXPECT_THAT(lines[1], HasSubstr("Threads do not shorten"));
}

TEST(Tuning, RunsNothingAgainThatFailed) {
  Runs runs{.step = [](const Candidate& one) {
    return one.share_memory || one.threads == 2 ? 0.0 : 1.0;
  }};
  const auto rows = runs.measure();
  EXPECT_EQ(runs.count(on_two_cores[0]), 1);
  EXPECT_EQ(std::ranges::count_if(runs.made, &Candidate::share_memory), 1);
  const auto failed = std::ranges::find(rows, on_two_cores[0], &tune::Row::candidate);
  EXPECT_EQ(failed->problem, "it failed");
  EXPECT_FALSE(failed->measured());
}

TEST(Tuning, OmitsVariantsOfRanksThatAreFarBehind) {
  Runs runs{.step = [](const Candidate& one) { return one.ranks == 2 ? 10.0 : 1.0; }};
  EXPECT_EQ(runs.measure().size(), on_two_cores.size());
}

TEST(Tuning, HasNoConclusionWithoutAMeasurement) {
  Runs runs{.step = [](const Candidate&) { return 0.0; }};
  const auto rows = runs.measure();
  const auto verdict = tune::conclude(rows, false);
  EXPECT_EQ(verdict.best, nullptr);
  EXPECT_TRUE(tune::lines(verdict, 2).empty());
  EXPECT_FALSE(verdict.one_process_wins());
}

}  // namespace
}  // namespace lockstep::testing
