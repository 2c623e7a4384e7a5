#include "lockstep/early_stopping.h"

#include <torch/types.h>

#include <limits>
#include <optional>
#include <vector>

#include "lockstep/checkpoint.h"
#include "lockstep/error.h"
#include "tests/groups.h"
#include "tests/matchers.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"
#include "tests/train/training.h"

namespace lockstep::testing {
namespace {

constexpr double a_nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinite = std::numeric_limits<double>::infinity();

/// How many values it takes until training stops; 0 if it does not.
std::size_t stop_of(EarlyStopping stopping, const std::vector<double>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool stopped = stopping.update(values[i]);
    EXPECT_EQ(stopped, stopping.stopped());
    if (stopped) return i + 1;
  }
  return 0;
}

TEST(EarlyStopping, StopsAfterValuesWithoutImprovement) {
  const std::vector<double> values{5, 4, 4, 4.5, 3, 3, 3, 3, 2};
  EXPECT_EQ(stop_of(EarlyStopping({.patience = 1}), values), 3u);
  EXPECT_EQ(stop_of(EarlyStopping({.patience = 2}), values), 4u);
  EXPECT_EQ(stop_of(EarlyStopping({.patience = 3}), values), 8u);
  EXPECT_EQ(stop_of(EarlyStopping(), values), 8u);
  EXPECT_EQ(stop_of(EarlyStopping({.patience = 4}), values), 0u);
}

TEST(EarlyStopping, TheGreatestMayBeBest) {
  const EarlyStoppingOptions options{.patience = 2, .mode = Best::greatest};
  EXPECT_EQ(stop_of(EarlyStopping(options), {-3, -2, -2, -1, -1, -5, 7}), 6u);
  EXPECT_EQ(stop_of(EarlyStopping({.patience = 2}), {-3, -2, -2}), 3u);
}

TEST(EarlyStopping, AnImprovementIsMoreThanMinDelta) {
  // Small gains add up, because they are compared with the best value.
  EXPECT_EQ(stop_of(EarlyStopping({.patience = 3, .min_delta = 0.5}), {4, 3.75, 3.5, 3.25, 3}), 0u);
  EXPECT_EQ(stop_of(EarlyStopping({.patience = 2, .min_delta = 0.5}), {4, 3.75, 3.5}), 3u);
  EarlyStopping stopping({.min_delta = 0.5});
  EXPECT_EQ(stopping.best(), std::nullopt);
  EXPECT_FALSE(stopping.improved());
  stopping.update(4);
  EXPECT_TRUE(stopping.improved());
  stopping.update(3.5);
  EXPECT_FALSE(stopping.improved());
  EXPECT_EQ(stopping.best(), 4);
  EXPECT_EQ(stopping.waited(), 1);
  stopping.update(3.4375);
  EXPECT_TRUE(stopping.improved());
  EXPECT_EQ(stopping.best(), 3.4375);
  EXPECT_EQ(stopping.waited(), 0);
}

TEST(EarlyStopping, ValuesThatAreNotFiniteStopAtOnce) {
  for (const double value : {a_nan, infinite, -infinite}) {
    EXPECT_EQ(stop_of(EarlyStopping(), {5, value, 4}), 2u) << value;
    EXPECT_EQ(stop_of(EarlyStopping(), {value}), 1u) << value;
    EarlyStopping stopping;
    stopping.update(value);
    EXPECT_TRUE(stopping.not_finite());
    EXPECT_EQ(stopping.best(), std::nullopt);
  }
}

TEST(EarlyStopping, OrCountAsValuesWithoutImprovement) {
  for (const Best mode : {Best::least, Best::greatest}) {
    const EarlyStoppingOptions options{.patience = 2, .mode = mode, .check_finite = false};
    for (const double value : {a_nan, infinite, -infinite}) {
      EXPECT_EQ(stop_of(EarlyStopping(options), {value, 1, value, value}), 4u) << value;
      EXPECT_EQ(stop_of(EarlyStopping(options), {value, value}), 2u) << value;
    }
  }
}

TEST(EarlyStopping, RefusesWrongOptions) {
  for (const std::int64_t patience : {0, -1}) {
    EXPECT_THAT(refusal([&] { EarlyStopping({.patience = patience}); }),
                HasSubstr("EarlyStopping: got patience = "));
  }
  for (const double delta : {-0.5, a_nan, infinite}) {
    EXPECT_THAT(refusal([&] { EarlyStopping({.min_delta = delta}); }),
                HasSubstr("EarlyStopping: got min_delta = "));
  }
}

TEST(EarlyStopping, RanksStopTogetherByRankZerosValue) {
  for (const int ranks : {1, 2, 3}) {
    std::vector<int> stops(static_cast<std::size_t>(ranks));
    run_groups(ranks, [&](const Group& group) {
      EarlyStopping stopping({.patience = 2});
      const std::vector<double> losses{4, 3, 3.5, 3.25, 1};
      int step = 0;
      // The loss of the other ranks falls all the time, or is not known.
      for (const double loss : losses) {
        ++step;
        const double own = group.rank() == 0 ? loss : group.rank() == 1 ? -step : a_nan;
        if (stopping.update(own, group)) break;
      }
      EXPECT_EQ(stopping.best(), 3);
      stops[static_cast<std::size_t>(group.rank())] = step;
    });
    EXPECT_EQ(stops, std::vector<int>(static_cast<std::size_t>(ranks), 4)) << ranks;
  }
}

TEST(EarlyStopping, AResumedRunKeepsItsPatience) {
  const TemporaryFolder folder;
  const std::vector<double> losses{4, 3, 3.5, 3.25, 3.125, 1};
  for (std::size_t saved = 0; saved <= losses.size(); ++saved) {
    Training training;
    EarlyStopping whole({.patience = 3});
    const auto checkpoint_of = [&](EarlyStopping& stopping) {
      return Checkpoint{.model = *training.model, .extra = {{"early_stopping", stopping}}};
    };
    std::size_t done = 0;
    for (; done < saved && !whole.stopped(); ++done) whole.update(losses[done]);
    checkpoint_of(whole).save(folder / "c");
    EarlyStopping resumed({.patience = 3});
    resumed.update(-7);
    checkpoint_of(resumed).load(folder / "c");
    EXPECT_EQ(resumed.best(), whole.best());
    EXPECT_EQ(resumed.waited(), whole.waited());
    EXPECT_EQ(resumed.improved(), whole.improved());
    while (!resumed.stopped()) resumed.update(losses.at(done++));
    EXPECT_EQ(done, 5u) << "saved after " << saved;
    // More patience continues a run that has ended.
    EarlyStopping patient({.patience = 4});
    checkpoint_of(whole).save(folder / "c");
    checkpoint_of(patient).load(folder / "c");
    EXPECT_FALSE(patient.stopped());
  }
}

TEST(EarlyStopping, RefusesOtherStates) {
  EarlyStopping stopping;
  stopping.update(5);
  const auto refused = [&](const State& state) {
    return refusal([&] { stopping.load_state(state); });
  };
  EXPECT_THAT(refused(EarlyStopping({.mode = Best::greatest}).state()),
              HasSubstr("got the state of mode greatest, expected least"));
  const State good = EarlyStopping().state();
  State more = good;
  more["more"] = torch::tensor(1);
  EXPECT_THAT(refused(more), HasSubstr("state() did not return"));
  State negative = good;
  negative["waited"] = torch::tensor(std::int64_t{-1});
  EXPECT_THAT(refused(negative), HasSubstr("got -1 values since the best one"));
  EXPECT_EQ(stopping.best(), 5);
}

}  // namespace
}  // namespace lockstep::testing
