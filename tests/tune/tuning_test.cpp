#include "tune/tuning.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/error.h"
#include "tests/matchers.h"

namespace lockstep::testing {
namespace {

using tune::Candidate;
using tune::Scaling;
using tune::StepTime;
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

TEST(Tuning, CallsADifferenceWithinTheSpreadEqualAndOmitsVariantsOfWhatIsFarBehind) {
  Runs runs{.step = [](const Candidate& one) { return one.bucket == 5 ? 0.995 : 1.0; }};
  const auto rows = runs.measure();
  const auto verdict = tune::conclude(rows, false);
  ASSERT_NE(verdict.best, nullptr);
  EXPECT_EQ(verdict.best->candidate, on_two_cores[2]) << "fewer settings, as none is faster";
  runs.step = [](const Candidate& one) { return one.ranks == 2 ? 10.0 : 1.0; };
  EXPECT_EQ(runs.measure().size(), on_two_cores.size()) << "no variants of what is far behind";
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

TEST(Tuning, RunsNothingAgainThatFailedAndConcludesNothingFromIt) {
  Runs runs{.step = [](const Candidate& one) {
    return one.share_memory || one.threads == 2 ? 0.0 : 1.0;
  }};
  const auto rows = runs.measure();
  EXPECT_EQ(runs.count(on_two_cores[0]), 1);
  EXPECT_EQ(std::ranges::count_if(runs.made, &Candidate::share_memory), 1);
  const auto failed = std::ranges::find(rows, on_two_cores[0], &tune::Row::candidate);
  EXPECT_EQ(failed->problem, "it failed");
  EXPECT_FALSE(failed->measured());
  runs.step = [](const Candidate&) { return 0.0; };
  const auto none = runs.measure();
  const auto verdict = tune::conclude(none, false);
  EXPECT_EQ(verdict.best, nullptr);
  EXPECT_TRUE(tune::lines(verdict, 2).empty());
  EXPECT_FALSE(verdict.one_process_wins());
}

Topology host_of(int nodes, int cores_per_node) {
  Topology topology;
  for (int cpu = 0; cpu < nodes * cores_per_node; ++cpu) {
    topology.cores.push_back({.node = cpu / cores_per_node, .cpus = {cpu}});
  }
  return topology;
}

std::vector<std::pair<int, int>> layouts_on(const Topology& topology,
                                            const tune::Program& program = {.name = "true"},
                                            const tune::Search& search = {}) {
  std::vector<std::pair<int, int>> all;
  for (const auto& one : tune::layouts(topology, program, search)) {
    EXPECT_EQ(one.changes(), 0);
    all.emplace_back(one.ranks, one.threads);
  }
  return all;
}

std::string variable(const launch::Plan& plan, const std::string& name) {
  for (const auto* variables : {&plan.ranks.front().variables, &plan.inherited})
    for (const auto& [known, value] : *variables)
      if (known == name) return value;
  return "";
}

TEST(TuneLayouts, DivideTheCoresAmongRanks) {
  EXPECT_THAT(layouts_on(host_of(2, 16)),
              ElementsAre(Pair(1, 32), Pair(1, 16), Pair(1, 8), Pair(2, 16), Pair(4, 8), Pair(8, 4),
                          Pair(16, 2), Pair(32, 1)));
  EXPECT_THAT(layouts_on(host_of(1, 2)), ElementsAre(Pair(1, 2), Pair(1, 1), Pair(2, 1)));
  EXPECT_THAT(layouts_on(host_of(1, 7)),
              ElementsAre(Pair(1, 7), Pair(1, 3), Pair(1, 1), Pair(7, 1)));
  EXPECT_THAT(layouts_on(host_of(1, 1)), ElementsAre(Pair(1, 1)));
  // 3 ranks on 2 nodes of 6 cores would need a rank with cores of both.
  EXPECT_THAT(layouts_on(host_of(2, 6)),
              ElementsAre(Pair(1, 12), Pair(1, 6), Pair(1, 3), Pair(2, 6), Pair(4, 3), Pair(6, 2),
                          Pair(12, 1)));
}

TEST(TuneLayouts, DivideTheGlobalBatchAndAreThoseThatTheUserWants) {
  const auto four = host_of(1, 4), six = host_of(1, 6);
  EXPECT_THAT(layouts_on(six, {.name = "true", .global_batch = 4}),
              ElementsAre(Pair(1, 6), Pair(1, 3), Pair(1, 1), Pair(2, 3)));
  EXPECT_THAT([&] { layouts_on(six, {.name = "true", .global_batch = 4}, {.ranks = {3}}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("--global-batch: got 4")));
  EXPECT_THAT(layouts_on(four, {.name = "true"}, {.ranks = {2, 3}}),
              ElementsAre(Pair(2, 2), Pair(3, 1)));
  EXPECT_THAT([&] { layouts_on(four, {.name = "true"}, {.ranks = {5}}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("--ranks: got 5, expected 1 to 4")));
  tune::Program program{.name = "true", .arguments = {"{batch}"}};
  EXPECT_THAT([&] { layouts_on(host_of(1, 1), program); },
              ThrowsMessage<InvalidArgument>(HasSubstr("{batch}")));
  program.global_batch = 8;
  EXPECT_THAT(layouts_on(host_of(1, 1), program), ElementsAre(Pair(1, 1)));
}

TEST(TuneVariants, DifferInOneSetting) {
  std::vector<std::string> texts;
  for (const auto& one : tune::variants({.ranks = 4, .threads = 8}, {.buckets = {5, 25, 100}})) {
    EXPECT_EQ(one.changes(), 1);
    texts.push_back(tune::text(one));
  }
  EXPECT_THAT(
      texts,
      ElementsAre("4 ranks × 8 threads, not bound", "4 ranks × 8 threads, buckets of 5 MiB",
                  "4 ranks × 8 threads, buckets of 100 MiB", "4 ranks × 8 threads, shared memory"));
  EXPECT_THAT(tune::variants({.ranks = 1, .threads = 8}, {}), IsEmpty());
}

TEST(TuneCommand, IsWhatThePlanRuns) {
  const auto topology = host_of(2, 16);
  const tune::Program program{
      .name = "true", .arguments = {"--batch={batch}", "a b"}, .global_batch = 64};
  const Candidate plain{.ranks = 4, .threads = 8};
  EXPECT_EQ(tune::command_of(plain, program, topology, {}),
            "lockstep run -n 4 true --batch=16 'a b'");
  Candidate changed{
      .ranks = 2, .threads = 4, .bind = launch::Bind::none, .bucket = 100, .share_memory = true};
  EXPECT_EQ(tune::command_of(changed, program, topology, {}),
            "OMP_NUM_THREADS=4 LOCKSTEP_BUCKET_MIB=100 LOCKSTEP_SHARE_MEMORY=1 "
            "lockstep run -n 2 --bind none true --batch=32 'a b'");

  const launch::Variables inherited{
      {"PATH", "/usr/bin:/bin"},         {"OMP_NUM_THREADS", "77"},
      {"LOCKSTEP_BUCKET_MIB", "77"},     {"LOCKSTEP_SHARE_MEMORY", "1"},
      {"LOCKSTEP_FLIGHT_RECORDER", "0"}, {"MINE", "kept"}};
  EXPECT_EQ(tune::command_of(plain, program, topology, inherited),
            "env -u OMP_NUM_THREADS -u LOCKSTEP_BUCKET_MIB -u LOCKSTEP_SHARE_MEMORY "
            "-u LOCKSTEP_FLIGHT_RECORDER lockstep run -n 4 true --batch=16 'a b'");
  EXPECT_THAT(tune::command_of(changed, program, topology, inherited),
              StartsWith("env -u LOCKSTEP_FLIGHT_RECORDER OMP_NUM_THREADS=4 LOCKSTEP_BUCKET_MIB="));
  auto plan = tune::plan_of(plain, program, topology, inherited);
  EXPECT_THAT(plan.options.arguments, ElementsAre("--batch=16", "a b"));
  EXPECT_EQ(plan.ranks.size(), 4u);
  EXPECT_EQ(plan.ranks[1].cpus.size(), 8u);
  EXPECT_EQ(variable(plan, "OMP_NUM_THREADS"), "8");
  for (const char* removed :
       {"LOCKSTEP_BUCKET_MIB", "LOCKSTEP_SHARE_MEMORY", "LOCKSTEP_FLIGHT_RECORDER"})
    EXPECT_EQ(variable(plan, removed), "") << removed;
  EXPECT_EQ(variable(plan, "MINE"), "kept");
  plan = tune::plan_of(changed, program, topology, inherited);
  EXPECT_THAT(plan.ranks[1].cpus, IsEmpty());
  EXPECT_EQ(variable(plan, "OMP_NUM_THREADS"), "4");
  EXPECT_EQ(variable(plan, "LOCKSTEP_BUCKET_MIB"), "100");
  EXPECT_EQ(variable(plan, "LOCKSTEP_SHARE_MEMORY"), "1");
}

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

TEST(TuneScaling, SaysWhatIsMissingAndHasNoNegativeTerm) {
  EXPECT_THAT(Scaling::fit({{1, 2, 0.1}, {2, 1, 0.1}}, false).problem, HasSubstr("two numbers"));
  EXPECT_THAT(Scaling::fit({{1, 2, 0.1}, {1, 1, 0.1}, {2, 1, 0.1}}, false).problem,
              HasSubstr("do not make one process faster"));
  EXPECT_THAT(Scaling::fit({{1, 2, 0.1}, {1, 1, 0.2}}, false).problem, HasSubstr("several ranks"));
  // Twice the threads, less than half the time; ranks faster than the formula without an exchange.
  const auto scaling = Scaling::fit({{1, 2, 0.04}, {1, 1, 0.1}, {2, 1, 0.01}}, false);
  EXPECT_EQ(scaling.problem, "");
  EXPECT_EQ(scaling.serial, 0);
  EXPECT_EQ(scaling.added, 0);
  EXPECT_GT(scaling.parallel, 0);
}

}  // namespace
}  // namespace lockstep::testing
