#include <unistd.h>

#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "core/text.h"
#include "launch/job/processes.h"
#include "tests/launch/launched.h"
#include "tests/matchers.h"

// Ranks that go on when their part in the job is over.

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

TEST(Remaining, FourRanksAreNamedAtOnce) {
  launch::RemainingRanks remaining(6, 10s, std::nullopt);
  std::vector<launch::RemainingRanks::Rank> ranks;
  for (int rank = 1; rank < 6; ++rank) {
    ranks.push_back({.rank = rank, .pid = ::getpid(), .why = launch::RemainReason::left});
  }
  launch::RemainingRanks::Clock::time_point now{};
  for (int i = 0; i < 10; ++i, now += 1s) EXPECT_THAT(remaining.update(now, ranks), IsEmpty());
  const auto lines = remaining.update(now, ranks);
  ASSERT_THAT(lines, SizeIs(5));
  EXPECT_THAT(lines.front(), HasSubstr("rank 1 of 6"));
  EXPECT_EQ(lines.back(), "lockstep: the same of 1 rank more");
  for (int i = 0; i < 30; ++i, now += 1s) EXPECT_THAT(remaining.update(now, ranks), IsEmpty());
}

TEST(Remaining, NoRankIsNamedWithoutStallWarnings) {
  launch::RemainingRanks remaining(2, 0s, std::nullopt);
  launch::RemainingRanks::Clock::time_point now{};
  for (int i = 0; i < 60; ++i, now += 1s) {
    EXPECT_THAT(remaining.update(now, {{1, ::getpid(), launch::RemainReason::left}}), IsEmpty());
  }
}

TEST(Remaining, RanksAreNamedWithWhatTheyDoAndAreNotEnded) {
  const auto script =
      "case $LOCKSTEP_RANK in 0) b=leave;; 1) b=leave-and-hang;; 2) b=leave-and-stop;; "
      "3) b=leave-and-compute;; 4) b=leave-and-exec;; 5) b=hang-in-destructor;; esac; "
      "exec \"$0\" $b $LOCKSTEP_RANK";
  Launched job(in_shell(
      concat("run -n 6 --stall-warning 3 sh -c '", script, "' ", quoted(rank_program()), " 2>&1")));
  for (int rank = 1; rank <= 4; ++rank) job.await_output(concat("rank ", rank, " of 6 (pid "));
  const auto program = "left the world [3-9] s ago and has not ended: program ";
  EXPECT_THAT(job.output(),
              AllOf(ContainsRegex(concat("rank 1 of 6 \\(pid [0-9]+\\) ", program,
                                         "launch_rank_program, sleeping, 0 s of processor time")),
                    ContainsRegex(concat("rank 2 of 6 .*", program, ".*, stopped by a signal")),
                    ContainsRegex(concat("rank 3 of 6 .*", program, ".*, running, [0-9.]+")),
                    ContainsRegex(concat("rank 4 of 6 .*", program, "sleep, sleeping, "))));
  EXPECT_THAT(job.output(), Not(HasSubstr("rank 0 of 6")));
  kill(job.pid(), SIGINT);
  const auto ended = job.wait();
  EXPECT_EQ(ended.code, 128 + SIGINT);
  EXPECT_THAT(ended.out, Not(HasSubstr("failed")));
  EXPECT_FALSE(anything_left());
}

TEST(Remaining, RanksAreEndedWhenAnotherFails) {
  Launched job(
      in_shell(concat("run -n 3 sh -c 'case $LOCKSTEP_RANK in ",
                      "0) b=hang-in-destructor;; 1) b=leave-and-exec;; 2) b=exit-3;; esac; ",
                      "exec \"$0\" $b $LOCKSTEP_RANK' ", quoted(rank_program()))));
  const auto ended = job.wait();
  EXPECT_THAT(ended, ends(3, {"rank 2 of 3 failed first: it ended with exit code 3"}));
  EXPECT_FALSE(anything_left());
}

TEST(Remaining, LimitEndsARankThatLeftTheWorld) {
  for (const char* behaviour : {"leave-and-hang", "leave-and-stop", "hang-in-destructor"}) {
    const auto ended =
        run_lockstep({"-n", "2", "--linger", "0.5", "sh", "-c",
                      "[ $LOCKSTEP_RANK = 1 ] && exec \"$0\" $1 1; exec \"$0\" leave 0",
                      rank_program(), behaviour});
    EXPECT_THAT(ended, ends(1, {"rank 1 of 2 failed first: it went on for 0.5 s after it left "
                                "the world (--linger); the launcher ended it"}));
    EXPECT_FALSE(anything_left());
  }
}

TEST(Remaining, LimitEndsTheLastRankOfAProgramWithoutAWorld) {
  const auto ended = run_lockstep(
      {"-n", "2", "--linger", "0", "sh", "-c", "[ $LOCKSTEP_RANK = 0 ] || exec sleep 1000"});
  EXPECT_THAT(ended, ends(1, {"rank 1 of 2 failed first: it went on for 0 s after all other "
                              "ranks ended (--linger)"}));
}

TEST(Remaining, StoppedRankIsNamedWhileOthersWait) {
  Launched job(in_shell(concat("run -n 2 ", quoted(rank_program()), " stop 1 2>&1")),
               {{"LOCKSTEP_STALL_WARNING", "2"}});
  job.await_output("has been stopped by a signal for 2 s. Continue it with kill -CONT ");
  const auto stopped = numbers_after(job.output(), "kill -CONT");
  ASSERT_EQ(stopped.size(), 1U);
  kill(stopped.front(), SIGKILL);
  EXPECT_EQ(job.wait().code, 128 + SIGKILL);
}

}  // namespace
}  // namespace lockstep::testing
