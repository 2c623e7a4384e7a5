#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/comm/failures.h"
#include "tests/comm/stopped_job.h"

// Ranks that are processes, and end.

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

const ProcessBody killed("rank 1 is killed", [](const auto& group) {
  if (group->rank() == 1) ::raise(SIGKILL);
  group->all_reduce(floats, 8, DType::f32, ReduceOp::sum).wait();
});

const ProcessBody exits("rank 1 exits 0", [](const auto& group) {
  if (group->rank() == 1) ::_exit(0);
  group->barrier().wait();
});

const ProcessBody stopped("rank 1 is stopped", [](const auto& group) {
  const auto all = pids_of(*group);
  if (group->rank() == 1) ::raise(SIGSTOP);
  if (group->rank() == 0) {
    while (!is_stopped(all[1])) ::usleep(1000);
  }
  try {
    group->all_reduce(floats, 8, DType::f32, ReduceOp::sum, {.timeout = 300ms}).wait();
  } catch (const TimeoutError&) {
    // Rank 1 goes on once rank 0 has given up; before it has stopped it would not hear of that.
    if (group->rank() == 0) {
      while (!is_stopped(all[1])) ::usleep(1000);
      ::kill(static_cast<pid_t>(all[1]), SIGCONT);
    }
    throw;
  }
});

const ProcessBody job_stopped("the job is stopped",
                              [](const auto& group) { stop_for_longer_than(2s, *group); });

TEST(Processes, AStoppedJobGoesOnThoughTheTimeoutHasPassed) {
  const auto outcomes = run_processes(3, "the job is stopped", 2s);
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST(Processes, KilledRankIsNamed) {
  const auto outcomes = run_processes(3, "rank 1 is killed");
  EXPECT_EQ(outcomes[1].code, SIGKILL);
  for (const int rank : {0, 2}) {
    const auto& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("rank 1 left the world (signal 9) before all_reduce #1"));
  }
}

TEST(Processes, EarlyExitIsNamed) {
  const auto outcomes = run_processes(2, "rank 1 exits 0");
  EXPECT_THAT(outcomes[0].err, HasSubstr("rank 1 left the world (exit code 0) before barrier #1"));
}

TEST(Processes, StoppedRankIsFoundByTheTimeout) {
  const auto outcomes = run_processes(2, "rank 1 is stopped");
  for (const auto& outcome : outcomes) {
    EXPECT_THAT(outcome.err, HasSubstr("all_reduce #2 waited 0.3 s for rank 1 (stopped)"));
  }
}

}  // namespace
}  // namespace lockstep::testing
