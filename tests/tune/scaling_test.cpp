#include <algorithm>
#include <utility>
#include <vector>

#include "tests/matchers.h"
#include "tune/tuning.h"

namespace lockstep::testing {
namespace {

using tune::Scaling;
using tune::StepTime;

/// Times by the formula, written out: of one process with 8, 4 and 2 threads, and of 2 × 4 and 8
/// × 1.
std::vector<StepTime> times_of(double serial, double parallel, double added, bool same_batch) {
  std::vector<StepTime> times;
  for (const int threads : {8, 4, 2}) times.push_back({1, threads, serial + parallel / threads});
  for (const auto& [ranks, threads] : {std::pair{2, 4}, std::pair{8, 1}}) {
    const double work = serial + parallel / threads;
    times.push_back({ranks, threads, (same_batch ? work / ranks : work) + added * ranks});
  }
  return times;
}

TEST(TuneScaling, FindsTheTermsOfTheFormula) {
  for (const bool same_batch : {false, true}) {
    const auto scaling = Scaling::fit(times_of(0.02, 0.3, 0.001, same_batch), same_batch);
    EXPECT_EQ(scaling.problem, "");
    EXPECT_NEAR(scaling.serial, 0.02, 1e-9);
    EXPECT_NEAR(scaling.parallel, 0.3, 1e-9);
    EXPECT_NEAR(scaling.added, 0.001, 1e-9);
  }
}

TEST(TuneScaling, KnowsOnHowManyCoresTheWinnerChanges) {
  // A same global batch: one process needs s + p/C, R ranks s/R + p/C + c·R. Several ranks win if
  // s·(1 − 1/R) > c·R for some R that divides C. With s = 10 and c = 2, that is false for R = 2
  // (5 > 4 is true): the winner does not change.
  const auto ranks = Scaling::fit(times_of(10, 100, 2, true), true);
  EXPECT_FALSE(ranks.one_rank_wins(8));
  EXPECT_FALSE(ranks.change(8).has_value());
  // With c = 3: 5 > 6 is false, and so is every larger R.
  const auto one = Scaling::fit(times_of(10, 100, 3, true), true);
  EXPECT_TRUE(one.one_rank_wins(8));
  EXPECT_FALSE(one.change(8).has_value());

  // A rank's batch is the same. One process makes 1/(s + p/C) batches per second, R ranks with T
  // threads R/(s + p/T + c·R). With T = C/R, 1/rate = s/R + p/C + c, so the largest R is the best,
  // and ranks win if s·(1 − 1/C) > c.
  const auto later = Scaling::fit(times_of(1, 100, 0.9, false), false);
  EXPECT_TRUE(later.one_rank_wins(8));    // 0.875 > 0.9 is false
  EXPECT_FALSE(later.one_rank_wins(16));  // 0.9375 > 0.9
  EXPECT_EQ(later.change(8), 16);
  EXPECT_EQ(later.best_ranks(16).ranks, 16);
  EXPECT_EQ(later.best_ranks(16).threads, 1);
}

TEST(TuneScaling, SaysWhatIsMissing) {
  EXPECT_THAT(Scaling::fit({{1, 2, 0.1}, {2, 1, 0.1}}, false).problem, HasSubstr("two numbers"));
  EXPECT_THAT(Scaling::fit({{1, 2, 0.1}, {1, 1, 0.1}, {2, 1, 0.1}}, false).problem,
              HasSubstr("do not make one process faster"));
  EXPECT_THAT(Scaling::fit({{1, 2, 0.1}, {1, 1, 0.2}}, false).problem, HasSubstr("several ranks"));
}

TEST(TuneScaling, HasNoNegativeTerm) {
  // Twice the threads, less than half the time; ranks faster than the formula without an exchange.
  const auto scaling = Scaling::fit({{1, 2, 0.04}, {1, 1, 0.1}, {2, 1, 0.01}}, false);
  EXPECT_EQ(scaling.problem, "");
  EXPECT_EQ(scaling.serial, 0);
  EXPECT_EQ(scaling.added, 0);
  EXPECT_GT(scaling.parallel, 0);
}

}  // namespace
}  // namespace lockstep::testing
