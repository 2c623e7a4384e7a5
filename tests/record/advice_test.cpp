#include <cmath>

#include "record/page/report.h"
#include "tests/matchers.h"
#include "tests/record/page_fault.h"

namespace lockstep::inline v0_2::record {
namespace {

using namespace testing;

/// An interval of 100 steps.
Run run_of(std::vector<RankInterval> ranks, const std::string& strategy = "fp32") {
  record::Run run;
  run.name = strategy;
  run.environment = {{"backend", "host"}, {"strategy", strategy}};
  run.intervals = {{.step = 100, .steps = 100, .ranks = std::move(ranks)}};
  return run;
}

std::vector<std::string> findings(const Run& run) {
  std::vector<std::string> found;
  for (const auto& [finding, remedy] : advice_of(run)) {
    found.push_back(finding);
    EXPECT_THAT(remedy, Not(IsEmpty()));
  }
  return found;
}

TEST(Advice, NamesWhatMakesAStepSlow) {
  const RankInterval even{.seconds = 4, .waiting = 0.4, .working = 0.4, .bytes = 400, .samples = 9};
  const RankInterval loads{.seconds = 4, .waiting = 1, .working = 0.2, .loading = 0.1};
  const RankInterval loads_long{.seconds = 4, .waiting = 0, .working = 0.2, .loading = 1.2};
  const RankInterval waits{.seconds = 4, .waiting = 2, .working = 0.2};
  const RankInterval computes{.seconds = 4, .waiting = 0.1, .working = 0.2};
  const RankInterval exchanges{.seconds = 4, .waiting = 1, .working = 1};
  const std::pair<std::vector<RankInterval>, std::vector<std::string>> cases[] = {
      {{even, even, even}, {}},
      {{even}, {}},
      {{loads, loads_long, loads},
       {"Rank 1 waits 12 ms of a step of 40 ms for its data loader; the other ranks wait 1 ms."}},
      {{loads_long, loads_long},
       {"Ranks wait up to 12 ms of a step of 40 ms for their data loaders."}},
      {{waits, waits, computes},
       {"Rank 2 computes 37 ms a step; the other ranks compute 18 ms and wait for it."}},
      {{exchanges, exchanges},
       {"Communication and waiting take 50 % of the ranks' time: 20 ms of a step of 40 ms."}}};
  for (const auto& [ranks, said] : cases) EXPECT_EQ(findings(run_of(ranks)), said);
  EXPECT_THAT(findings(record::Run{}), IsEmpty());
  auto run = run_of({waits, waits, computes});
  run.hosts = {"a", "a", "b"};
  run.has_several_hosts = true;
  EXPECT_THAT(findings(run), ElementsAre(HasSubstr("Rank 2 on b computes 37 ms")));
}

TEST(Advice, NamesMoreRanksThanCores) {
  const RankInterval rank{.seconds = 4, .waiting = 1, .working = 1};
  auto run = run_of({rank, rank, rank});
  run.hosts = {"a", "a", "a"};
  run.environment.emplace_back("cores", "2");
  EXPECT_THAT(findings(run), ElementsAre("3 ranks share 2 cores of a, so each computes for a part "
                                         "of the time."));
  run.hosts = {"a", "a", "b"};
  EXPECT_THAT(findings(run), ElementsAre(HasSubstr("Communication and waiting")));
}

TEST(Advice, NamesAStrategyThatCostsMoreThanItSaves) {
  // 10 ms a step to exchange 20 kB in place of 1 MB: 0.1 GB/s.
  RankInterval rank{
      .seconds = 4, .waiting = 0.1, .working = 1, .bytes = 2'000'000, .dense_bytes = 100'000'000};
  EXPECT_THAT(findings(run_of({rank, rank}, "topk:0.02")),
              ElementsAre("Strategy topk:0.02 works 10 ms a step to exchange 20 kB in place of 1 "
                          "MB: 100 MB of gradients a second."));
  auto apart = run_of({rank, rank}, "topk:0.02");
  apart.environment[0].second = "mpi";
  EXPECT_THAT(findings(apart), IsEmpty()) << "a network may well be slower";
  rank.dense_bytes = 10'000'000'000;  // 10 GB/s
  EXPECT_THAT(findings(run_of({rank, rank}, "topk:0.02")), IsEmpty());
}

TEST(Advice, NamesLossesThatGoWrongAndStepsThatBecomeSlow) {
  record::Run run;
  run.curves = {{"train_loss", {{1, 2}, {2, 1}, {3, 0.5}, {4, 0.2}}},
                {"test_loss", {{1, 2}, {2, 1}, {3, 1.1}, {4, 1.5}}}};
  EXPECT_THAT(findings(run), ElementsAre("test_loss ends at 1.5; its least was 1 at step 2, while "
                                         "train_loss still falls."));
  run.curves.back().second[0] = NAN;
  EXPECT_THAT(findings(run), ElementsAre("test_loss is no number at step 0.",
                                         StartsWith("test_loss ends at 1.5; its least was 1 at ")));
  run.curves = {{"loss", {{1, 2}, {7, NAN}, {8, 1}}}};
  EXPECT_THAT(findings(run), ElementsAre("loss is no number at step 7."));
  run = {};
  for (int i = 1; i <= 6; ++i) {
    run.intervals.push_back(
        {.step = 10 * i, .steps = 10, .ranks = {{.seconds = i <= 4 ? 0.4 : 0.8}}});
  }
  EXPECT_THAT(findings(run), ElementsAre("A step takes 80 ms in the last third of the intervals, "
                                         "and took 40 ms in the first."));
}

TEST(Comparison, ShowsDifferencesAndBothCurves) {
  auto a = run_of({{.seconds = 4, .waiting = 1, .samples = 1000}, {.seconds = 4, .samples = 1000}});
  auto b = run_of({{.seconds = 5, .waiting = 1, .samples = 1000}, {.seconds = 5, .samples = 1000}});
  a.name = b.name = "log";
  b.environment[1].second = "fp16";
  a.curves = {{"train_loss", {{1, 2}, {2, 1}}}, {"only <a>", {{1, 2}, {2, 1}}}};
  b.curves = {{"train_loss", {{1, 2}, {2, 0.5}}}};
  const auto page = comparison_page(a, b);
  EXPECT_EQ(testing::page_fault(page), "");
  for (const char* part :
       {"<h1>Runs log (A) and log (B)</h1>",
        "<td>step of the slowest rank</td><td>40 ms</td><td>50 ms</td><td>+10 ms</td><td>+25 "
        "%</td>",
        "<td>samples/s</td><td>500</td><td>400</td><td>−100</td><td>−20 %</td>",
        "<td>train_loss, last</td><td>1</td><td>0.5</td><td>−0.5</td><td>−50 %</td>",
        "<td>only &lt;a&gt;, last</td><td>1</td><td></td><td></td><td></td>",
        "log (A) at step 2: 1<", "log (B) at step 2: 0.5<", "curve second",
        "<td>strategy</td><td>fp32</td><td>fp16</td>"}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
  EXPECT_THAT(page, Not(HasSubstr("<td>backend</td>"))) << "is the same";
  EXPECT_EQ(testing::page_fault(comparison_page({}, {})), "");
}

}  // namespace
}  // namespace lockstep::record
