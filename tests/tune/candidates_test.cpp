#include "tune/candidates.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/error.h"
#include "tests/matchers.h"
#include "tune/tuning.h"

namespace lockstep::testing {
namespace {

using tune::Candidate;

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

const std::string& variable(const launch::Plan& plan, const std::string& name) {
  static const std::string none;
  for (const auto* variables : {&plan.ranks.front().variables, &plan.inherited}) {
    for (const auto& [known, value] : *variables) {
      if (known == name) return value;
    }
  }
  return none;
}

TEST(TuneLayouts, DivideTheCoresAmongRanks) {
  EXPECT_THAT(layouts_on(host_of(2, 16)),
              ElementsAre(Pair(1, 32), Pair(1, 16), Pair(1, 8), Pair(2, 16), Pair(4, 8), Pair(8, 4),
                          Pair(16, 2), Pair(32, 1)));
  EXPECT_THAT(layouts_on(host_of(1, 2)), ElementsAre(Pair(1, 2), Pair(1, 1), Pair(2, 1)));
  EXPECT_THAT(layouts_on(host_of(1, 7)),
              ElementsAre(Pair(1, 7), Pair(1, 3), Pair(1, 1), Pair(7, 1)));
  EXPECT_THAT(layouts_on(host_of(1, 1)), ElementsAre(Pair(1, 1)));
}

TEST(TuneLayouts, GiveNoRankCoresOfSeveralNodesUnlessItHasWholeOnes) {
  // 3 ranks on 2 nodes of 6 cores would need a rank with cores of both.
  EXPECT_THAT(layouts_on(host_of(2, 6)),
              ElementsAre(Pair(1, 12), Pair(1, 6), Pair(1, 3), Pair(2, 6), Pair(4, 3), Pair(6, 2),
                          Pair(12, 1)));
}

TEST(TuneLayouts, DivideTheGlobalBatch) {
  EXPECT_THAT(layouts_on(host_of(1, 6), {.name = "true", .global_batch = 4}),
              ElementsAre(Pair(1, 6), Pair(1, 3), Pair(1, 1), Pair(2, 3)));
  EXPECT_THAT(
      [] { layouts_on(host_of(1, 6), {.name = "true", .global_batch = 4}, {.ranks = {3}}); },
      ThrowsMessage<InvalidArgument>(HasSubstr("--global-batch: got 4")));
}

TEST(TuneLayouts, AreThoseThatTheUserWants) {
  EXPECT_THAT(layouts_on(host_of(1, 4), {.name = "true"}, {.ranks = {2, 3}}),
              ElementsAre(Pair(2, 2), Pair(3, 1)));
  EXPECT_THAT([] { layouts_on(host_of(1, 4), {.name = "true"}, {.ranks = {5}}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("--ranks: got 5, expected 1 to 4")));
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
  EXPECT_EQ(tune::command_of(plain, program, topology), "lockstep run -n 4 true --batch=16 'a b'");
  Candidate changed{
      .ranks = 2, .threads = 4, .bind = launch::Bind::none, .bucket = 100, .share_memory = true};
  EXPECT_EQ(tune::command_of(changed, program, topology),
            "OMP_NUM_THREADS=4 LOCKSTEP_BUCKET_MIB=100 LOCKSTEP_SHARE_MEMORY=1 "
            "lockstep run -n 2 --bind none true --batch=32 'a b'");

  const launch::Variables inherited{
      {"PATH", "/usr/bin:/bin"},         {"OMP_NUM_THREADS", "77"},
      {"LOCKSTEP_BUCKET_MIB", "77"},     {"LOCKSTEP_SHARE_MEMORY", "1"},
      {"LOCKSTEP_FLIGHT_RECORDER", "0"}, {"MINE", "kept"}};
  auto plan = tune::plan_of(plain, program, topology, inherited);
  EXPECT_THAT(plan.options.arguments, ElementsAre("--batch=16", "a b"));
  EXPECT_EQ(plan.ranks.size(), 4u);
  EXPECT_EQ(plan.ranks[1].cpus.size(), 8u);
  EXPECT_EQ(variable(plan, "OMP_NUM_THREADS"), "8");
  EXPECT_EQ(variable(plan, "LOCKSTEP_BUCKET_MIB"), "");
  EXPECT_EQ(variable(plan, "LOCKSTEP_SHARE_MEMORY"), "");
  EXPECT_EQ(variable(plan, "LOCKSTEP_FLIGHT_RECORDER"), "");
  EXPECT_EQ(variable(plan, "MINE"), "kept");
  plan = tune::plan_of(changed, program, topology, inherited);
  EXPECT_THAT(plan.ranks[1].cpus, IsEmpty());
  EXPECT_EQ(variable(plan, "OMP_NUM_THREADS"), "4");
  EXPECT_EQ(variable(plan, "LOCKSTEP_BUCKET_MIB"), "100");
  EXPECT_EQ(variable(plan, "LOCKSTEP_SHARE_MEMORY"), "1");
}

TEST(TuneLayouts, NeedABatchForItsPlace) {
  tune::Program program{.name = "true", .arguments = {"{batch}"}};
  EXPECT_THAT([&] { layouts_on(host_of(1, 1), program); },
              ThrowsMessage<InvalidArgument>(HasSubstr("{batch}")));
  program.global_batch = 8;
  EXPECT_THAT(layouts_on(host_of(1, 1), program), ElementsAre(Pair(1, 1)));
}

}  // namespace
}  // namespace lockstep::testing
