#include "launch/job/supervisor.h"
#include "tests/launch/launched.h"

namespace lockstep::testing {
namespace {

/// Runs a shell script on two ranks with so many restarts.
Ended run_script(int restarts, const std::string& script, const Words& options = {}) {
  return run_lockstep(
      joined({"-n", "2", "--max-restarts", std::to_string(restarts), "--restart-delay", "0"},
             {options, {"sh", "-c", script}}));
}

/// A rank that misbehaves as long as the world was started again fewer than so many times.
std::string failing_until(int restarts, const std::string& behaviour) {
  return concat("if [ $LOCKSTEP_RESTART_COUNT -lt ", restarts, " ]; then exec ",
                quoted(rank_program()), ' ', behaviour, "; else exec ", quoted(rank_program()),
                " finish; fi");
}

TEST(Restart, GoesOnUntilAllIsWell) {
  const auto names_before = shared_memory_names();
  const auto ended = run_script(3, failing_until(2, "kill-9 1"));
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(numbers_after(ended.out, "pid").size(), 6U) << ended.out;
  for (const int restart : {1, 2}) {
    EXPECT_THAT(ended.err,
                ContainsRegex(concat("lockstep: restart ", restart,
                                     " of 3: rank 1 of 2 failed first: it was ended by SIGKILL ",
                                     "\\(host [^\n]*; all ranks start again in 0 s\n")));
  }
  EXPECT_EQ(numbers_after(ended.err, "lockstep:").size(), 2U)
      << "a line each, and no more: " << ended.err;
  EXPECT_THAT(names_before, ::testing::IsSupersetOf(shared_memory_names()));
  EXPECT_THAT(flight_records(ended.pid), IsEmpty());
}

TEST(Restart, TellsTheReasonThatTheWorldRecorded) {
  EXPECT_THAT(run_script(1, failing_until(1, "stop 1"), {"--timeout", "1"}),
              ends(0, {"restart 1 of 1: rank 1 of 2 failed first: it was stopped",
                       "; reason: ", "waited 1 s for rank 1"}));
}

TEST(Restart, EndsWhenAllAreUsedAfterDelaysThatDouble) {
  const auto ended = run_lockstep(
      {"-n", "2", "--max-restarts", "3", "--restart-delay", "0.05", rank_program(), "exit-3", "1"});
  EXPECT_EQ(numbers_after(ended.out, "pid").size(), 8U) << ended.out;
  EXPECT_THAT(ended,
              ends(3,
                   {"; all ranks start again in 0.05 s\n", " again in 0.1 s\n", " again in 0.2 s\n",
                    "restart 3 of 3", "lockstep: rank 1 of 2 failed first: it ended with exit",
                    "lockstep: not started again, as all restarts were used: 3"},
                   {"restart 4"}));
}

TEST(Restart, TakesTheExitCodeOfTheLastAttempt) {
  EXPECT_EQ(run_script(2, "exit $((40 + LOCKSTEP_RESTART_COUNT))").code, 42);
}

TEST(Restart, ThereIsNoneWhenTheSignalComesAfterTheFailure) {
  // Rank 1 says when the launcher, that has seen rank 0 end, asks it to end, and does not.
  Launched job(run_command({"-n", "2", "--max-restarts", "5", "--grace", "1000", "sh", "-c",
                            "[ $LOCKSTEP_RANK = 1 ] || exit 7; trap 'echo told' TERM; "
                            "while :; do sleep 1000 & wait; done"}));
  job.await_output("told");
  job.send(SIGINT);
  EXPECT_THAT(job.wait_for_all(), ends(7,
                                       {"rank 0 of 2 failed first: it ended with exit code 7",
                                        "not started again, as SIGINT asked it to end"},
                                       {"restart"}));
}

TEST(Restart, DelayIsEndedByASignal) {
  Launched job(in_shell(concat("run -n 2 --max-restarts 3 --restart-delay 1000 ",
                               quoted(rank_program()), " exit-3 1 2>&1")));
  job.await_output("all ranks start again in 1000 s");
  job.send(SIGTERM);
  const auto ended = job.wait_for_all();
  EXPECT_EQ(ended.code, 3);
  EXPECT_THAT(ended.out, AllOf(HasSubstr("lockstep: not started again, as SIG"),
                               HasSubstr("lockstep: rank 1 of 2 failed first: it ended with")));
}

TEST(Backoff, DoublesUpToAMinuteAndBeginsAnew) {
  using namespace std::chrono_literals;
  launch::Backoff backoff(1s);
  for (const auto delay : {1s, 2s, 4s, 8s, 16s, 32s, 60s, 60s})
    EXPECT_EQ(backoff.after(59s), delay);
  EXPECT_EQ(backoff.after(60s), 1s);
  EXPECT_EQ(backoff.after(1s), 2s);
  launch::Backoff none(0s);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(none.after(0s), 0s);
  launch::Backoff long_one(300s);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(long_one.after(1s), 300s);
}

TEST(Restart, MakesANewWorldAndLeavesNothingOfTheOld) {
  // Each rank says which memory is its world's; a process in a session of its own stays behind.
  const TemporaryFolder folder;
  const auto left = (folder / "left").string();
  const auto ended = run_script(
      1, concat("stat -L -c \"world $LOCKSTEP_RESTART_COUNT is %i,\" "
                "/proc/self/fd/$LOCKSTEP_ARENA_FD; [ $LOCKSTEP_RANK = 0 ] || exit 0; ",
                "if [ $LOCKSTEP_RESTART_COUNT = 0 ]; then setsid sleep 1000 & echo $! > ", left,
                "; exit 7; fi; kill -0 $(cat ", left, ") 2>/dev/null && echo met; true"));
  EXPECT_THAT(ended, prints({}, {"met"}));
  const auto first = numbers_after(ended.out, "world 0 is");
  const auto second = numbers_after(ended.out, "world 1 is");
  ASSERT_FALSE(first.empty());
  ASSERT_EQ(second.size(), 2U) << ended.out;
  EXPECT_EQ(second[0], second[1]);
  EXPECT_NE(first[0], second[0]);
}

TEST(Restart, EachAttemptHasItsOwnLogs) {
  const TemporaryFolder folder;
  const auto logs = folder / "logs";
  const auto script = "echo attempt $LOCKSTEP_RESTART_COUNT; [ $LOCKSTEP_RESTART_COUNT = 1 ]";
  EXPECT_EQ(run_script(1, script, {"--log-dir", logs.string()}).code, 0);
  for (const int rank : {0, 1}) {
    EXPECT_EQ(content(logs / "attempt-1" / concat("rank-", rank, ".out")), "attempt 1\n");
  }
  EXPECT_TRUE(std::filesystem::exists(logs / "attempt-0" / "rank-1.err"));
  EXPECT_NE(content(logs / "attempt-0" / "rank-0.out") + content(logs / "attempt-0" / "rank-1.out"),
            "");
  EXPECT_FALSE(std::filesystem::exists(logs / "rank-0.out"));
}

}  // namespace
}  // namespace lockstep::testing
