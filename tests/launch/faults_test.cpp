#include "tests/launch/launched.h"

namespace lockstep::testing {
namespace {

/// A fault must end the job in about a second; tests of a busy machine allow more, far below any
/// timeout of ranks.
constexpr double soon = 15;

struct Fault {
  std::string behaviour;
  int code;                            ///< of the job
  std::string cause;                   ///< words of the report
  std::vector<std::string> options{};  ///< of lockstep run
  std::string reason{};                ///< that the rank recorded
};

class Faults : public ::testing::TestWithParam<Fault> {
 protected:
  static void expect_named(int ranks, int culprit) {
    const auto& fault = GetParam();
    SCOPED_TRACE(concat("rank ", culprit, " of ", ranks));
    const auto ended = run_lockstep(
        joined({"-n", std::to_string(ranks)},
               {fault.options, {rank_program(), fault.behaviour, std::to_string(culprit)}}));

    EXPECT_FALSE(ended.by_signal);
    EXPECT_EQ(ended.code, fault.code);
    EXPECT_LT(ended.seconds.count(), soon);
    const auto begin = ended.err.rfind("lockstep: rank");
    ASSERT_NE(begin, std::string::npos) << ended.err;
    const auto report = ended.err.substr(begin);
    EXPECT_THAT(report, HasSubstr(concat("rank ", culprit, " of ", ranks, " failed first: it ",
                                         fault.cause)))
        << ended.err;
    if (!fault.reason.empty()) {
      EXPECT_THAT(report, AllOf(HasSubstr("\n  Reason: "), HasSubstr(fault.reason)));
    }
    const auto prefix = culprit == 0 ? std::string("\npid") : concat("\n[", culprit, "] pid");
    const auto pids = numbers_after(concat("\n", ended.out), prefix);
    ASSERT_EQ(pids.size(), 1U) << ended.out;
    EXPECT_THAT(report, HasSubstr(concat("pid ", pids.front(), ")")));
  }
};

TEST_P(Faults, OfTheLastOfTwoRanks) { expect_named(2, 1); }
TEST_P(Faults, OfTheFirstOfThreeRanks) { expect_named(3, 0); }

INSTANTIATE_TEST_SUITE_P(
    Run, Faults,
    ::testing::Values(
        Fault{"leave", 1, "left early with exit code 0 while others waited for it (host "},
        Fault{"leave-before-init", 1, "left early with exit code 0, without calling"},
        Fault{"exit-3", 3, "ended with exit code 3"},
        Fault{"throw", 128 + SIGABRT, "was ended by SIGABRT"},
        Fault{"segfault", 128 + SIGSEGV, "was ended by SIGSEGV"},
        Fault{"kill-9", 128 + SIGKILL, "was ended by SIGKILL (host "},
        Fault{"stop", 1, "was stopped (SIGSTOP)", {"--timeout", "1"}},
        Fault{"late", 1, "ended with exit code 1", {"--timeout", "1"}, "waited 1 s for rank "},
        Fault{"throw-and-end-late", 1, "raised an error and had not ended yet", {}, "disk full\n"},
        Fault{"last-with-own-error", 1, "ended with exit code 1", {}, "disk full\n"},
        Fault{"last-with-printed-error", 1, "ended with exit code 1"},
        Fault{"raised-error", 1, "ended with exit code 1"},
        Fault{"last-after-another-caught-an-error", 1, "ended with exit code 1"},
        Fault{"never-ends-with-own-error", 1, "raised an error and had not ended yet"},
        Fault{"last-with-stderr", 1, "ended with exit code 1"},
        Fault{"never-init", 1, "never called lockstep::init()", {"--timeout", "1"}}),
    [](const ::testing::TestParamInfo<Fault>& test) {
      std::string name = test.param.behaviour;
      std::erase(name, '-');
      return name;
    });

TEST(Run, AllWellIsZeroAndSilent) {
  const auto ended = run_lockstep({"-n", "7", rank_program(), "finish"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(ended.err, "");
  EXPECT_EQ(numbers_after(ended.out, "pid").size(), 7U);
}

/// Runs two ranks, of which rank 1 does so.
Ended run_rank_1(const std::string& script, const Words& options = {}) {
  return run_lockstep(joined(
      {"-n", "2"}, {options, {"sh", "-c", "[ $LOCKSTEP_RANK = 0 ] || { " + script + "; }"}}));
}

TEST(Report, HoldsTheLastTwentyLinesAndNoFramesOfABacktrace) {
  EXPECT_THAT(run_rank_1("seq -f 'line %g' 0 39 >&2; exit 5", {"--quiet"}),
              ends(5, {"  | line 20\n", "  | line 39\n"}, {"  | line 19\n"}));
  EXPECT_THAT(run_rank_1("echo 'shape is invalid' >&2; echo 'Exception raised from view at a.h:1 "
                         "(most recent call first):' >&2; seq -f 'frame #%g: c10' 0 30 >&2; exit 3",
                         {"--quiet"}),
              ends(3, {"  | shape is invalid\n"}, {"frame #", "Exception raised"}));
}

TEST(Report, DoesNotRepeatLinesThatTheUserHasJustSeen) {
  EXPECT_THAT(run_rank_1("seq 5 >&2; exit 3"),
              ends(3, {"[1] 5\n", "Its last output on stderr is above."}, {"  | "}));
  const auto interrupted =
      run_lockstep({"-n", "2", "sh", "-c",
                    "if [ $LOCKSTEP_RANK = 1 ]; then echo one >&2; kill -9 $$; "
                    "else trap 'echo other >&2; exit 1' TERM; sleep 1000 & wait; fi"});
  EXPECT_THAT(interrupted.err, AllOf(HasSubstr("other\n"), HasSubstr("  | one\n")));
}

TEST(Report, HasAnErrorThatTheRankPrintedOnce) {
  for (const bool quiet : {false, true}) {
    const auto ended = run_lockstep(joined(quiet ? Words{"--quiet"} : Words{},
                                           {{"-n", "2", rank_program(), "printed-error", "1"}}));
    EXPECT_THAT(ended.err, HasSubstr("rank 1 of 2 failed first: it ended with exit code 1"));
    const auto found = ended.err.find("disk full");
    EXPECT_NE(found, std::string::npos);
    EXPECT_EQ(found, ended.err.rfind("disk full")) << ended.err;
    EXPECT_THAT(ended.err, HasSubstr(quiet ? "  | program: disk full\n"
                                           : "\n  Its error is printed above.\n"));
  }
}

TEST(Stopping, ReachesARankThatIgnoresSigterm) {
  Launched job(run_command({"-n", "2", "--grace", "0.1", rank_program(), "stubborn", "1"}));
  job.await_output("pid ", 2);
  job.await_output("ready");
  const auto first = numbers_after(concat("\n", job.output()), "\npid");
  ASSERT_EQ(first.size(), 1U);
  kill(first.front(), SIGKILL);
  const auto ended = job.wait_for_all();
  EXPECT_THAT(ended, ends(128 + SIGKILL, {"rank 0 of 2 failed first: it was ended by SIGKILL"}));
  EXPECT_LT(ended.seconds.count(), soon);
}

TEST(Stopping, ReachesDescendantsThatLeftTheGroupAndThoseOfASuccessfulJob) {
  EXPECT_EQ(run_lockstep({"-n", "2", rank_program(), "hidden-descendant", "0"}).code, 4);
  const auto ended = run_lockstep({"-n", "2", "sh", "-c", "sleep 1000 & echo started"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_LT(ended.seconds.count(), soon);
}

/// Also where the launcher inherits that all signals are blocked.
TEST(Interrupted, EndsAllRanks) {
  for (const auto& before : {Words{}, Words{"/usr/bin/env", "--block-signal"}}) {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
      Launched job(joined(before, {run_command({"-n", "3", "--max-restarts", "5", "--grace", "1000",
                                                rank_program(), "never-init", "2"})}));
      job.await_output("pid ", 3);
      job.send(signal);
      const auto ended = job.wait_for_all();
      EXPECT_THAT(ended,
                  ends(128 + signal, {"lockstep: ended by SIG"}, {"failed first", "restart"}));
      EXPECT_EQ(numbers_after(ended.out, "pid").size(), 3U);
      EXPECT_LT(ended.seconds.count(), soon);
    }
  }
}

TEST(Interrupted, TwiceKills) {
  Launched job(run_command({"-n", "2", "--grace", "1000", rank_program(), "stubborn", "0"}));
  job.await_output("pid ", 2);
  job.await_output("ready");
  job.send(SIGINT);
  job.send(SIGTERM);
  EXPECT_EQ(job.wait_for_all().code, 128 + SIGINT);
}

/// `lockstep run` of two shells with this script, which then go on, and its stderr in its stdout.
Launched shells(const std::string& options, const std::string& script) {
  return Launched(in_shell(concat("run -n 2 ", options, " sh -c ",
                                  quoted(script + "; while :; do sleep 0.05; done"), " 2>&1")));
}

TEST(Forwarded, ReachesTheHandlersOfAllRanks) {
  auto job = shells("", "trap \"echo one\" USR1; trap \"echo two; exit 0\" USR2; echo ready");
  job.await_output("ready", 2);
  job.send(SIGUSR1);
  job.await_output("one", 2);
  job.send(SIGUSR2);
  EXPECT_THAT(job.wait(), prints({"[1] two\n"}, {"lockstep: "}));
}

TEST(Forwarded, EndsARankWithoutAHandler) {
  Launched job(run_command({"-n", "2", rank_program(), "stop", "2"}));
  job.await_output("pid ", 2);
  job.send(SIGUSR1);
  const auto ended = job.wait_for_all();
  EXPECT_THAT(ended,
              ends(128 + SIGUSR1, {"of 2 failed first: it was ended by SIGUSR1, which the launcher "
                                   "forwarded: install a handler for it before lockstep::init(), "
                                   "or pass --no-forward-signals (host "}));
}

TEST(Forwarded, IsNoneWithTheOption) {
  auto job =
      shells("--no-forward-signals", "trap \"echo one\" USR1; trap \"echo two\" USR2; echo ready");
  job.await_output("ready", 2);
  job.send(SIGUSR1);
  job.send(SIGUSR2);
  job.send(SIGINT);
  const auto ended = job.wait();
  EXPECT_EQ(ended.code, 128 + SIGINT);
  EXPECT_THAT(ended.out, AllOf(Not(HasSubstr("one")), Not(HasSubstr("two"))));
}

TEST(Forwarded, WaitsForRanksThatStart) {
  const TemporaryFolder folder;
  const auto ready = folder.path() / "ready";
  auto job = shells("", concat("echo up; until [ -e ", ready.string(),
                               " ]; do sleep 0; done; trap \"echo saved; exit 0\" USR1"));
  job.await_output("up", 2);
  job.send(SIGUSR1);
  job.await_output("lockstep: SIGUSR1 is forwarded when rank ");
  std::ofstream{ready};
  EXPECT_THAT(job.wait(), prints({"[1] saved\n"}));
}

TEST(Forwarded, WaitsForARestart) {
  auto job = shells("--max-restarts 1 --restart-delay 1",
                    "[ $LOCKSTEP_RESTART_COUNT = 0 ] && exit 1; trap \"echo saved; exit 0\" USR1");
  job.await_output("all ranks start again");
  job.send(SIGUSR1);
  EXPECT_THAT(job.wait(), prints({"[1] saved\n"}));
}

TEST(Forwarded, IsNotLostWithoutAWord) {
  auto job = shells("", "echo up; sleep 1; exit");
  job.await_output("up", 2);
  job.send(SIGUSR2);
  EXPECT_THAT(job.wait(),
              prints({"lockstep: SIGUSR2 was not forwarded, because no rank was left\n"}));
}

TEST(Guardian, ThatIsKilledIsReported) {
  Launched job(in_shell(concat("run -n 2 ", quoted(rank_program()), " never-init 1 2>&1")));
  job.await_output("pid ", 2);
  const auto guardians = guardians_of(job.pid());
  ASSERT_EQ(guardians.size(), 1U);
  kill(guardians.front(), SIGKILL);
  job.await_output(concat("lockstep: the guardian process (pid ", guardians.front(),
                          "), which ends the ranks if the launcher is killed, ended with SIGKILL. "
                          "Ranks may outlive a killed launcher."));
  job.send(SIGINT);
  EXPECT_EQ(job.wait_for_all().code, 128 + SIGINT);
}

TEST(LauncherKilled, LeavesNoRankAndNoDescendant) {
  // The descendants of the shell are no children of the launcher: only the guardian can end them.
  const Words shell{"sh", "-c", quoted(rank_program()) + " descendant 1 & wait"};
  for (const auto& [program, last] :
       {std::pair(Words{rank_program(), "stubborn", "1"}, "ready"), {shell, "descendant "}}) {
    Launched job(run_command(joined({"-n", "2"}, {program})));
    job.await_output("pid ", 2);
    job.await_output(last);
    job.send(SIGKILL);
    EXPECT_TRUE(await_all_ended(std::chrono::seconds(20)));
  }
}

}  // namespace
}  // namespace lockstep::testing
