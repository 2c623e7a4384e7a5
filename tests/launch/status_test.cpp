#include <thread>

#include "tests/launch/launched.h"

// `lockstep status`, the stall warning and `lockstep explain`. tests/random_hangs checks what they
// say of many hangs.

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

/// Asks until the answer holds the text, for at most 20 s.
Ended ask_until(const std::string& job, const std::string& text) {
  const auto until = std::chrono::steady_clock::now() + 20s;
  for (;;) {
    auto answer = run_cli({"status", job});
    if (answer.out.find(text) != std::string::npos || std::chrono::steady_clock::now() > until) {
      return answer;
    }
    std::this_thread::sleep_for(50ms);
  }
}

TEST(Status, NamesAStoppedRankAndNothingOfAKilledLauncher) {
  Launched job(run_command({"-n", "3", rank_program(), "stop", "1"}));
  job.await_output("pid ", 3);
  // A rank counts as waiting 0.2 s after it begins, so the two may appear one after the other.
  const std::string waits = "ranks 0, 2 have waited for rank 1 in barrier #1 of the world for ";
  EXPECT_THAT(ask_until(std::to_string(job.pid()), waits),
              prints({"3 ranks, backend host",
                      "=> the others wait for rank 1: its process is stopped (SIGSTOP", waits}));
  // The question has stopped and ended nobody.
  EXPECT_EQ(run_cli({"status", std::to_string(job.pid())}).code, 0);
  EXPECT_THAT(flight_records(job.pid()), SizeIs(3));
  job.send(SIGKILL);
  const auto ended = job.wait();
  EXPECT_TRUE(await_all_ended(10s));
  EXPECT_THAT(flight_records(ended.pid), IsEmpty());
  EXPECT_EQ(run_cli({"status", std::to_string(ended.pid)}).code, 1);
}

TEST(Status, KnowsNoOtherJob) {
  EXPECT_THAT(run_cli({"status", "no-such-job"}), ends(1, {"no job no-such-job of this user"}));
  EXPECT_EQ(run_cli({"status", "--json", "no-such-job"}).out, "[]\n");
}

TEST(StallWarning, NamesTheMissingRankOnceForAllRanksAndIsOffForZero) {
  const auto run_with = [](const char* warning, const char* timeout) {
    return run_lockstep(
        {"-n", "3", "--stall-warning", warning, "--timeout", timeout, rank_program(), "stop", "1"});
  };
  const auto ended = run_with("0.5", "1.3");
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(ended.err, HasSubstr("lockstep: stalled: the others wait for rank 1: its process is "
                                   "stopped (SIGSTOP or a debugger)"));
  // At 0.5 s and 1 s, by rank 0.
  EXPECT_THAT(ended.err, Not(HasSubstr("[2] lockstep: stalled")));
  EXPECT_THAT(run_with("0", "0.5").err, Not(HasSubstr("stalled")));
}

TEST(Explain, MergesTheRecordsOfAllRanks) {
  const TemporaryFolder folder;
  const auto logs = folder.path().string();
  run_lockstep({"-n", "3", "--timeout", "1", "--log-dir", logs, rank_program(), "stop", "1"});
  const auto trace = (folder / "trace.json").string();
  EXPECT_THAT(run_cli({"explain", logs, "--trace", trace}),
              prints({"3 ranks, backend host, 3 records",
                      "first cause: barrier #1 waited 1 s for rank 1 (stopped)",
                      "rank 1 raised no failure: stopped (SIGSTOP or a debugger)",
                      "the others wait for rank 1: its process is stopped", "no stacks of rank 1",
                      "ranks 0, 2 have waited for rank 1 in barrier #1 of the world",
                      "ranks 0, 2 issued last: barrier #1 of the world, not complete"}));
  EXPECT_THAT(content(trace), AllOf(HasSubstr("\"traceEvents\":["), HasSubstr("rank 2 on ")));
  std::filesystem::create_symlink("trace.json", folder / "link.json");
  EXPECT_THAT(run_cli({"explain", logs, "--trace", (folder / "link.json").string()}),
              ends(1, {"/link.json: cannot write: it is a symbolic link to trace.j"}));
}

TEST(Explain, HasTheRecordOfAKilledRank) {
  const TemporaryFolder folder;
  const auto logs = folder.path().string();
  run_lockstep({"-n", "2", "--log-dir", logs, rank_program(), "kill-9", "1"});
  EXPECT_THAT(run_cli({"explain", logs}).out,
              AllOf(HasSubstr("2 records"), HasSubstr("rank 1 raised no failure")));
  // Of a job that was restarted, the newest attempt with records is explained, and no earlier job.
  const auto restarted = (folder / "restarted").string();
  run_lockstep({"-n", "2", "--log-dir", restarted, rank_program(), "kill-9", "0"});
  run_lockstep({"-n", "2", "--max-restarts", "1", "--restart-delay", "0", "--log-dir", restarted,
                rank_program(), "kill-9", "1"});
  std::filesystem::create_directory(restarted + "/attempt-2");
  EXPECT_THAT(run_cli({"explain", restarted}).out,
              AllOf(HasSubstr("attempt-1 of "), HasSubstr("2 records")));
  // A later job in the same folder does not inherit the records.
  EXPECT_EQ(run_lockstep({"-n", "2", "--log-dir", logs, "true"}).code, 0);
  EXPECT_EQ(run_cli({"explain", logs}).code, 2);
}

// What the handler of crashes and the stacks of threads tell. The signals and exit codes are those
// of a program without a handler.

class Crash : public ::testing::Test {
 protected:
  void SetUp() override {
    if (is_sanitized) GTEST_SKIP() << "the sanitizer has a handler of its own";
  }

  Ended run(const std::string& behaviour, const Launched::Variables& variables = {},
            const std::string& timeout = "60") {
    return run_lockstep({"-n", "3", "--timeout", timeout, "--log-dir", folder_.path().string(),
                         rank_program(), behaviour, "1"},
                        variables);
  }
  std::string explain(const Words& options = {}) {
    return run_cli(joined({"explain", folder_.path().string()}, {options})).out;
  }
  std::string stacks(int rank) {
    return content(folder_.path() / ("rank-" + std::to_string(rank) + ".stacks"));
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
  // A later job in the same folder does not inherit the stacks.
  EXPECT_EQ(run_lockstep({"-n", "3", "--log-dir", folder_.path().string(), "true"}).code, 0);
  EXPECT_EQ(stacks(1), "");
}

TEST_F(Crash, HasTheExitStatusOfItsSignal) {
  EXPECT_EQ(run("abort").code, 128 + SIGABRT);
  EXPECT_THAT(explain(), HasSubstr("crashed: SIGABRT"));
  for (const char* behaviour : {"stack-overflow", "crash-in-a-thread"}) {
    EXPECT_THAT(run(behaviour), ends(128 + SIGSEGV, {") crashed: SIGSEGV"}));
  }
  EXPECT_THAT(explain({"--stacks"}), HasSubstr("crash_in_the_program"));
}

TEST_F(Crash, IsNotHandledIfTheUserSaysSo) {
  EXPECT_THAT(run("crash", {{"LOCKSTEP_CRASH_HANDLER", "0"}}),
              ends(128 + SIGSEGV, {"it was ended by SIGSEGV"}, {"crashed:"}));
}

/// Other languages' runtimes resolve faults, and their handler is in place before init().
TEST_F(Crash, IsNoFaultThatTheProgramResolves) {
  for (const char* behaviour :
       {"fault-that-is-left", "fault-that-is-mended", "fault-that-is-mended-in-a-child"}) {
    Launched job(run_command({"-n", "3", rank_program(), behaviour, "1"}));
    job.await_output("resolved");
    job.send(SIGTERM);
    EXPECT_THAT(job.wait().err, Not(HasSubstr("crashed"))) << behaviour;
  }
}

TEST_F(Crash, StacksOfAHangingRankAreWritten) {
  EXPECT_NE(run("spin", {}, "1").code, 0);
  EXPECT_THAT(explain(), AllOf(HasSubstr("wait for rank 1: it has made no call of Lockstep for "),
                               HasSubstr("stack of rank 1 (pid "),
                               ContainsRegex("#0 .*spin_in_the_program"), HasSubstr("main")));
  EXPECT_THAT(explain({"--stacks"}),
              AllOf(HasSubstr("stacks of rank 0"), HasSubstr("stacks of rank 2"),
                    HasSubstr("spin_in_the_program"), HasSubstr("RankContext::")));
}

}  // namespace
}  // namespace lockstep::testing
