#include <sched.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "core/system/topology.h"
#include "tests/launch/launched.h"
#include "tests/variable.h"

// `lockstep tune`, as a user starts it, on programs with steps of known length.

namespace lockstep::testing {
namespace {

Ended tune(const std::string& arguments) { return run_in_shell("tune " + arguments); }

const std::string no_share =
    "[ -z \"$LOCKSTEP_SHARE_MEMORY\" ] || { echo this program has no use for it >&2; exit 3; };";
const std::string brief = "--ranks 1,2 --rounds 1 --warm-up 0 --seconds 0.3 --buckets 5 ";

bool has_two_cores() { return Topology::read().cores.size() >= 2; }

TEST(TuneCommand, PrintsTheCandidatesForAnotherHost) {
  const auto ended = tune("--dry-run --topology 2x16 --global-batch 256 ./train --batch {batch}");
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out,
              AllOf(HasSubstr("32 cores, 2 NUMA nodes; each candidate runs 3 times"),
                    HasSubstr("lockstep run -n 1 ./train --batch 256\n"),
                    HasSubstr("OMP_NUM_THREADS=16 lockstep run -n 1 ./train --batch 256"),
                    HasSubstr("lockstep run -n 32 ./train --batch 8\n"),
                    HasSubstr("LOCKSTEP_SHARE_MEMORY=1 lockstep run -n 2 ")));
}

TEST(TuneCommand, RefusesWrongInput) {
  expect_refused({lockstep_program(), "tune"},
                 {{"", {"no program given"}},
                  {"--round 3 true", {"did you mean --rounds?"}},
                  {"--rounds 0 true", {"--rounds"}},
                  {"--buckets 0 true", {"--buckets"}},
                  {"--ranks 1,two true", {"--ranks: got 'two'"}},
                  {"--global-batch 0 true", {"--global-batch: got '0'"}},
                  {"--ranks 100000 true", {"--ranks: got 100000"}},
                  {"--topology 2x16 true", {"--dry-run"}},
                  {"--dry-run --topology 2x true", {"NODESxCORES"}},
                  {"true {batch}", {"--global-batch"}},
                  {"--seconds -1 true", {"--seconds"}},
                  {"/no/such/program", {"/no/such/program"}}});
}

TEST(TuneCommand, FindsTheFastestOfKnownSteps) {
  if (!has_two_cores()) GTEST_SKIP() << "one core: nothing to divide";
  const auto ended = tune(brief + "--json sh -c '" + no_share +
                          " exec \"$0\" steps-faster-by-ranks' " + rank_program());
  ASSERT_EQ(ended.code, 0) << ended.err;
  const auto json = nlohmann::json::parse(ended.out);
  EXPECT_EQ(json["best"]["ranks"], 2) << ended.out;
  EXPECT_TRUE(json["several_ranks_win"]);
  EXPECT_EQ(json["rate_unit"], "batches/s");
  bool refused = false;
  for (const auto& one : json["candidates"]) {
    if (one["share_memory"]) {
      refused = true;
      EXPECT_THAT(one["problem"].get<std::string>(), HasSubstr("this program has no use for it"));
      EXPECT_TRUE(one["rate"].is_null());
    } else if (one["ranks"] == 1) {
      // A step takes 200 ms and a little more. Another load can only make it longer.
      EXPECT_GE(one["step_ms"], 200.0);
      EXPECT_LE(one["rate"], 1e3 / 200);
    }
  }
  EXPECT_TRUE(refused);
}

TEST(TuneCommand, SaysWhenOneProcessWins) {
  if (!has_two_cores()) GTEST_SKIP() << "one core: nothing to divide";
  const Variable unset("OMP_NUM_THREADS", nullptr);  // else the command begins with env
  const auto ended =
      tune(brief + "--global-batch 8 " + rank_program() + " steps-faster-by-threads");
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out,
              AllOf(HasSubstr("One process wins on these"), HasSubstr("samples/s"),
                    HasSubstr("\nbest: lockstep run -n 1 "), HasSubstr("Threads do not shorten")));
}

TEST(TuneCommand, SaysWhyAProgramCannotBeMeasured) {
  const auto expect_said = [](const std::string& arguments, const auto& said) {
    const auto ended = tune("--ranks 1 --rounds 1 --warm-up 0 " + arguments);
    EXPECT_EQ(ended.code, 1) << arguments;
    EXPECT_THAT(ended.out, AllOf(HasSubstr("not measured: 1 rank"), said, Not(HasSubstr("best:"))));
  };
  expect_said(rank_program() + " three-steps", HasSubstr("the program ended after"));
  expect_said("--limit 0.5 " + rank_program() + " steps-without-a-count",
              HasSubstr("counted 0 steps in 0.5 s"));
  expect_said("sh -c 'echo this program has no use for it >&2; exit 3'",
              AllOf(HasSubstr("this program has no use for it"), HasSubstr("exit code 3")));
}

TEST(TuneCommand, EndsItsRanksWhenItIsEnded) {
  for (const int signal : {SIGTERM, SIGKILL}) {
    Launched job(in_shell("tune --ranks 1 --seconds 600 --limit 600 " + rank_program() +
                          " steps-faster-by-ranks"));
    auto launchers = children_of(job.pid());
    while (launchers.empty()) launchers = children_of(job.pid());
    const auto launcher = *launchers.begin();
    while (flight_records(launcher).empty()) sched_yield();
    kill(job.pid(), signal);
    const auto ended = job.wait();
    EXPECT_EQ(ended.code, signal == SIGKILL ? SIGKILL : 128 + signal);
    EXPECT_TRUE(await_all_ended(std::chrono::seconds(10)));
    EXPECT_TRUE(flight_records(launcher).empty());
  }
}

}  // namespace
}  // namespace lockstep::testing
