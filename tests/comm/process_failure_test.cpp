#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "failures.h"

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
  if (group->rank() == 1) {
    // Stops itself; the parent of the test ends it once rank 0 has given up.
    ::raise(SIGSTOP);
  }
  try {
    group->all_reduce(floats, 8, DType::f32, ReduceOp::sum, {.timeout = 300ms}).wait();
  } catch (const TimeoutError&) {
    ::kill(0, SIGCONT);
    throw;
  }
});

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
  EXPECT_THAT(outcomes[0].err, HasSubstr("all_reduce #1 waited 0.3 s for rank 1"));
  EXPECT_THAT(outcomes[1].err, HasSubstr("all_reduce #1 waited 0.3 s for rank 1"));
}

}  // namespace
}  // namespace lockstep::testing
