#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/launch/launched.h"
#include "tests/matchers.h"
#include "tests/temporary_folder.h"

// What the handler of crashes and the stacks of threads tell. The signals and exit codes are those
// of a program without a handler.

namespace lockstep::testing {
namespace {

class Crash : public ::testing::Test {
 protected:
  void SetUp() override {
    if (is_sanitized) GTEST_SKIP() << "the sanitizer has a handler of its own";
  }

  Ended run(const std::string& behaviour, const Launched::Variables& variables = {}) {
    return run_lockstep({"-n", "3", "--timeout", "60", "--log-dir", folder_.path().string(),
                         rank_program(), behaviour, "1"},
                        variables);
  }
  std::string explain(const std::vector<std::string>& options = {}) {
    std::vector<std::string> words{lockstep_program(), "explain", folder_.path().string()};
    words.insert(words.end(), options.begin(), options.end());
    return Launched(words).wait().out;
  }
  std::string stacks(int rank) {
    return contents(folder_.path() / ("rank-" + std::to_string(rank) + ".stacks"));
  }

  TemporaryFolder folder_;
};

TEST_F(Crash, IsTheFirstCauseOnAllRanks) {
  const auto ended = run("crash");
  EXPECT_EQ(ended.code, 128 + SIGSEGV);
  EXPECT_THAT(ended.err,
              AllOf(HasSubstr("rank 1 of 3 failed first: it was ended by SIGSEGV"),
                    ContainsRegex("rank 0 of 3: rank 1 \\(pid [0-9]+\\) crashed: SIGSEGV"),
                    ContainsRegex("rank 2 of 3: rank 1 \\(pid [0-9]+\\) crashed: SIGSEGV")));
  EXPECT_THAT(
      explain(),
      AllOf(ContainsRegex("first cause: rank 1 \\(pid [0-9]+\\) crashed: SIGSEGV "
                          "\\(first raised by rank 1\\)"),
            HasSubstr("stack of rank 1 (pid "), ContainsRegex("#0 [^\n]*crash_in_the_program")));
  EXPECT_THAT(stacks(0), HasSubstr("process "));
  EXPECT_THAT(stacks(2), HasSubstr("process "));
}

TEST_F(Crash, HasTheExitStatusOfItsSignal) {
  EXPECT_EQ(run("abort").code, 128 + SIGABRT);
  EXPECT_THAT(explain(), HasSubstr("crashed: SIGABRT"));
  const auto overflow = run("stack-overflow");
  EXPECT_THAT(overflow, ends(128 + SIGSEGV, {") crashed: SIGSEGV"}));
  const auto in_a_thread = run("crash-in-a-thread");
  EXPECT_THAT(in_a_thread, ends(128 + SIGSEGV, {") crashed: SIGSEGV"}));
  EXPECT_THAT(explain({"--stacks"}), HasSubstr("crash_in_the_program"));
}

TEST_F(Crash, OfAnUncaughtErrorNamesTheError) {
  const auto ended = run("throw");
  EXPECT_THAT(ended, ends(128 + SIGABRT, {"this rank threw"}));
}

TEST_F(Crash, IsNotHandledIfTheUserSaysSo) {
  const auto ended = run("crash", {{"LOCKSTEP_CRASH_HANDLER", "0"}});
  EXPECT_THAT(ended, ends(128 + SIGSEGV, {"it was ended by SIGSEGV"}, {"crashed:"}));
}

/// Other languages' runtimes resolve faults, and their handler is in place before init().
TEST_F(Crash, IsNoFaultThatTheProgramResolves) {
  for (const char* behaviour : {"fault-that-is-left", "fault-that-is-mended"}) {
    Launched job({lockstep_program(), "run", "-n", "3", rank_program(), behaviour, "1"});
    job.await_output("resolved");
    kill(job.pid(), SIGTERM);
    EXPECT_THAT(job.wait().err, Not(HasSubstr("crashed"))) << behaviour;
  }
}

TEST_F(Crash, StacksOfAHangingRankAreWritten) {
  const auto ended = run_lockstep({"-n", "3", "--timeout", "1", "--log-dir",
                                   folder_.path().string(), rank_program(), "spin", "1"});
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(explain(), AllOf(HasSubstr("wait for rank 1: it has made no call of Lockstep for "),
                               HasSubstr("stack of rank 1 (pid "),
                               ContainsRegex("#0 .*spin_in_the_program"), HasSubstr("main")));
  EXPECT_THAT(explain({"--stacks"}),
              AllOf(HasSubstr("stacks of rank 0"), HasSubstr("stacks of rank 2"),
                    HasSubstr("spin_in_the_program"), HasSubstr("RankContext::")));
}

TEST_F(Crash, AStoppedRankIsNamed) {
  EXPECT_NE(run_lockstep({"-n", "3", "--timeout", "1", "--log-dir", folder_.path().string(),
                          rank_program(), "stop", "1"})
                .code,
            0);
  EXPECT_THAT(explain(),
              AllOf(HasSubstr("rank 1 raised no failure: stopped (SIGSTOP or a debugger)"),
                    HasSubstr("the others wait for rank 1: its process is stopped"),
                    HasSubstr("no stacks of rank 1")));
}

TEST_F(Crash, LeavesNoFilesOfAnEarlierJob) {
  run("crash");
  EXPECT_EQ(run_lockstep({"-n", "3", "--log-dir", folder_.path().string(), "true"}).code, 0);
  EXPECT_EQ(stacks(1), "");
}

}  // namespace
}  // namespace lockstep::testing
