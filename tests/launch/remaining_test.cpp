#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/job/processes.h"
#include "tests/launch/launched.h"

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
  const auto said = "left the world [3-9] s ago and has not ended: ";
  EXPECT_THAT(job.output(),
              AllOf(ContainsRegex(concat("rank 1 of 6 \\(pid [0-9]+\\) ", said, "sleeping\\. ")),
                    ContainsRegex(concat("rank 2 of 6 .*", said, "stopped by a signal")),
                    ContainsRegex(concat("rank 3 of 6 .*", said, "running")),
                    ContainsRegex(concat("rank 4 of 6 .*", said, "sleeping"))));
  EXPECT_THAT(job.output(), Not(HasSubstr("rank 0 of 6")));
  job.send(SIGINT);
  const auto ended = job.wait_for_all();
  EXPECT_EQ(ended.code, 128 + SIGINT);
  EXPECT_THAT(ended.out, Not(HasSubstr("failed")));
}

TEST(Remaining, RanksAreEndedWhenAnotherFails) {
  Launched job(
      in_shell(concat("run -n 3 sh -c 'case $LOCKSTEP_RANK in ",
                      "0) b=hang-in-destructor;; 1) b=leave-and-exec;; 2) b=exit-3;; esac; ",
                      "exec \"$0\" $b $LOCKSTEP_RANK' ", quoted(rank_program()))));
  EXPECT_THAT(job.wait_for_all(), ends(3, {"rank 2 of 3 failed first: it ended with exit code 3"}));
}

TEST(Remaining, LimitEndsARankThatLeftTheWorld) {
  for (const char* behaviour : {"leave-and-hang", "leave-and-stop", "hang-in-destructor"}) {
    const auto ended =
        run_lockstep({"-n", "2", "--linger", "0.5", "sh", "-c",
                      "[ $LOCKSTEP_RANK = 1 ] && exec \"$0\" $1 1; exec \"$0\" leave 0",
                      rank_program(), behaviour});
    EXPECT_THAT(ended, ends(1, {"rank 1 of 2 failed first: it went on for 0.5 s after it left "
                                "the world (--linger); the launcher ended it"}));
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

// Ranks that SIGKILL does not end, as on a file system that hangs.

/// Keeps a process from ending, whatever signal it gets, until this is destroyed: the kernel stops
/// a traced process at its exit until its tracer continues it.
class Held {
 public:
  explicit Held(pid_t pid) : pid_(pid) {
    held_ = ::ptrace(PTRACE_SEIZE, pid, nullptr, PTRACE_O_TRACEEXIT) == 0;
  }
  ~Held() {
    if (!held_) return;
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, __WALL), pid_);
    ::ptrace(PTRACE_DETACH, pid_, nullptr, nullptr);
    EXPECT_TRUE(await_all_ended(std::chrono::seconds(20)));
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  explicit operator bool() const { return held_; }

 private:
  pid_t pid_;
  bool held_;
};

class Unkillable : public ::testing::Test {
 protected:
  /// Starts a job and holds its rank 1. False where this container may not trace.
  bool start(const Words& options) {
    job_.emplace(run_command(joined({"-n", "2"}, {options, {rank_program(), "never-init", "1"}})));
    job_->await_output("pid ", 2);
    rank_1_ = numbers_after(job_->output(), "[1] pid").at(0);
    for (const auto pid : numbers_after(job_->output(), "pid")) {
      if (pid != rank_1_) rank_0_ = pid;
    }
    return static_cast<bool>(held_.emplace(rank_1_));
  }

  std::optional<Launched> job_;
  pid_t rank_0_ = 0;
  pid_t rank_1_ = 0;
  std::optional<Held> held_;
};

TEST_F(Unkillable, RankIsLeftBehindAndTheCauseIsTold) {
  if (!start({"--max-restarts", "3"})) GTEST_SKIP() << "this container may not trace";
  kill(rank_0_, SIGSEGV);
  EXPECT_THAT(job_->wait(),
              ends(128 + SIGSEGV,
                   {"rank 0 of 2 failed first: it was ended by SIGSEGV",
                    concat("lockstep: SIGKILL did not end rank 1 (pid ", rank_1_, ", "),
                    "not started again, as a process of this attempt still runs"},
                   {"restart 1"}));
}

TEST_F(Unkillable, RankDoesNotKeepALauncherThatIsInterrupted) {
  if (!start({})) GTEST_SKIP() << "this container may not trace";
  job_->send(SIGINT);
  job_->send(SIGTERM);
  EXPECT_THAT(
      job_->wait(),
      ends(128 + SIGINT, {concat("did not end rank 1 (pid ", rank_1_), "lockstep: ended by SIG"},
           {"no rank"}));
}

TEST_F(Unkillable, CauseThatIsHungIsTold) {
  if (!start({"--timeout", "0.5"})) GTEST_SKIP() << "this container may not trace";
  EXPECT_THAT(job_->wait(), ends(1, {"rank 1 of 2 failed first: it never called "
                                     "lockstep::init(); the launcher ",
                                     concat("did not end rank 1 (pid ", rank_1_)}));
}

/// Traces a process and its children, and keeps all children but the first from executing anything.
class ChildrenHeld {
 public:
  /// A process that has stopped itself.
  explicit ChildrenHeld(pid_t pid) : pid_(pid) {
    int status = 0;
    while (::waitpid(pid, &status, WUNTRACED) == pid && !WIFSTOPPED(status)) {
    }
    held_ = ::ptrace(PTRACE_SEIZE, pid, nullptr,
                     PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE) == 0;
    ::kill(pid, SIGCONT);
  }
  explicit operator bool() const { return held_; }

  /// Lets it go on until it has that many children, or has ended.
  void run_until(int children) {
    while (children_ < children && run_once()) {
    }
  }
  /// Its exit code.
  int run() {
    while (run_once()) {
    }
    return WEXITSTATUS(status_);
  }

 private:
  bool run_once() {
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, __WALL);
    if (pid == pid_ && !WIFSTOPPED(status)) {
      status_ = status;
      return false;
    }
    const int event = status >> 16;
    const bool forked =
        event == PTRACE_EVENT_FORK || event == PTRACE_EVENT_VFORK || event == PTRACE_EVENT_CLONE;
    if (pid == pid_ && forked) {
      unsigned long child = 0;
      ::ptrace(PTRACE_GETEVENTMSG, pid, nullptr, &child);
      if (children_++ == 0) first_ = static_cast<pid_t>(child);
    }
    if (!WIFSTOPPED(status) || (pid != pid_ && pid != first_)) return true;
    const bool signalled = event == 0;
    ::ptrace(PTRACE_CONT, pid, nullptr, signalled ? WSTOPSIG(status) : 0);
    return true;
  }

  pid_t pid_;
  pid_t first_ = -1;
  int children_ = 0;
  int status_ = 0;
  bool held_ = false;
};

TEST(Starting, RankThatDoesNotExecuteLeavesTheLauncherItsSignals) {
  // The leak sanitizer refuses to look at a traced process.
  Launched job(in_shell("run -n 1 echo ran",
                        "kill -STOP $$; export ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0; "));
  ChildrenHeld held(job.pid());
  if (!held) GTEST_SKIP() << "this container may not trace";
  held.run_until(2);  // the guardian, and the rank
  job.send(SIGINT);
  job.send(SIGTERM);
  EXPECT_EQ(held.run(), 128 + SIGINT);
  const auto ended = job.wait();
  EXPECT_EQ(ended.out, "");
  EXPECT_THAT(ended.err, HasSubstr("lockstep: ended by SIG"));
}

TEST(Cause, IsToldWhileTheOthersStillEnd) {
  Launched job(
      in_shell(concat("run -n 2 --grace 1000 ", quoted(rank_program()), " stubborn 1 2>&1")));
  job.await_output("pid ", 2);
  job.await_output("ready");
  const auto rank_0 = numbers_after(concat("\n", job.output()), "\npid");
  ASSERT_EQ(rank_0.size(), 1U);
  kill(rank_0.front(), SIGKILL);
  job.await_output("rank 0 of 2 failed first: it was ended by SIGKILL");
  job.send(SIGINT);
  const auto ended = job.wait_for_all();
  EXPECT_EQ(ended.code, 128 + SIGKILL);
  EXPECT_EQ(ended.out.find("failed first"), ended.out.rfind("failed first")) << ended.out;
}

}  // namespace
}  // namespace lockstep::testing
