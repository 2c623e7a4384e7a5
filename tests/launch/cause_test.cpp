#include <gtest/gtest.h>

#include <vector>

#include "launch/job/failure_report.h"

namespace lockstep::inline v0_2::launch {
namespace {

using detail::ErrorRecord;

const RankFacts well{};
const RankFacts silent{.failed = true};
const RankFacts late{.failed = true, .late = true};
const RankFacts wordy{.failed = true, .wrote_error = true};
const RankFacts crashed{.failed = true, .crashed = true};
const RankFacts raised{.failed = true, .raised_failure = true, .wrote_error = true};

RankFacts with_error(const std::string& text, ErrorKind kind = ErrorKind::general) {
  return {.failed = true, .wrote_error = true, .error = ErrorRecord{.kind = kind, .text = text}};
}

/// With the error of that rank.
RankFacts repeating(int rank, const std::string& text) {
  auto facts = with_error(text, ErrorKind::data);
  facts.error->rank = rank;
  facts.error->repeats = true;
  return facts;
}

/// The rank at fault, whichever rank has which facts.
void expect_named(const RankFacts& culprit, const std::vector<RankFacts>& others) {
  for (std::size_t place = 0; place <= others.size(); ++place) {
    auto ranks = others;
    ranks.insert(ranks.begin() + static_cast<std::ptrdiff_t>(place), culprit);
    EXPECT_EQ(rank_at_fault(ranks, std::nullopt), static_cast<int>(place));
  }
}

TEST(RankAtFault, IsTheOneThatTheRanksRecordedOrWhoseErrorCanBeRead) {
  EXPECT_EQ(rank_at_fault(std::vector{crashed, well, with_error("mine")}, 1), 1);
  auto unread = with_error("no data");
  unread.wrote_error = false;
  EXPECT_EQ(rank_at_fault(std::vector{with_error("no data"), unread}, 1), 0);
  EXPECT_EQ(rank_at_fault(std::vector{with_error("no data"), with_error("no data")}, 1), 1);
  EXPECT_EQ(rank_at_fault(std::vector{raised, unread}, 1), 1);
}

TEST(RankAtFault, IsTheOneThatPrintedTheErrorWhereAllWroteToStderr) {
  auto shown = with_error("no data");
  shown.shows_error = true;
  const auto warned = with_error("no data");
  expect_named(shown, {warned, warned});
  EXPECT_EQ(rank_at_fault(std::vector{shown, warned}, 1), 0);
  EXPECT_EQ(rank_at_fault(std::vector{warned, shown}, 0), 1);
}

TEST(RankAtFault, HasAnErrorOfItsOwn) {
  expect_named(with_error("disk full"), {raised, silent, late});
  expect_named(with_error("disk full"),
               {with_error("all_reduce #3: rank 7: disk full", ErrorKind::communication)});
  auto still_running = with_error("disk full");
  still_running.failed = false;
  expect_named(still_running, {silent, raised});
}

TEST(RankAtFault, IsNotOneThatRepeatsAnError) {
  const auto own = with_error("disk full", ErrorKind::data);
  EXPECT_EQ(rank_at_fault(std::vector{own, repeating(0, "rank 0: disk full")}, {}), 0);
  EXPECT_EQ(rank_at_fault(
                std::vector{repeating(2, "save: disk full"), repeating(2, "disk full"), own}, {}),
            2);
  // An error about another rank is the rank's own.
  auto about = with_error("rank 1 differs", ErrorKind::replica);
  about.error->rank = 1;
  EXPECT_EQ(rank_at_fault(std::vector{about, raised}, {}), 0);
  // The rank at fault left no error that could be reported.
  EXPECT_EQ(rank_at_fault(std::vector{well, repeating(0, "rank 0: disk full")}, {}), 1);
}

TEST(RankAtFault, CrashedOrFailedWithTheFirst) {
  expect_named(crashed, {raised, silent, wordy});
  auto crashed_by_failure = raised;
  crashed_by_failure.crashed = true;
  expect_named(silent, {crashed_by_failure});
  expect_named(silent, {late, raised});
  expect_named(wordy, {silent, silent});
}

TEST(RankAtFault, IsTheLowestOfEqualsOrNone) {
  EXPECT_EQ(rank_at_fault(std::vector{well, well}, std::nullopt), std::nullopt);
  EXPECT_EQ(rank_at_fault(std::vector{well, wordy, wordy}, std::nullopt), 1);
  EXPECT_EQ(rank_at_fault(std::vector{with_error("no data"), with_error("no data")}, std::nullopt),
            0);
  auto unread = with_error("no data");
  unread.wrote_error = false;
  expect_named(with_error("no data"), {unread, unread});
}

}  // namespace
}  // namespace lockstep::launch
