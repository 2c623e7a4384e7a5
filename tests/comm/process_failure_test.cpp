#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <fstream>
#include <string>

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

bool is_stopped(std::int64_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string number, name, state;
  in >> number >> name >> state;
  return state == "T";
}

const ProcessBody stopped("rank 1 is stopped", [](const auto& group) {
  const std::int64_t own = ::getpid();
  std::int64_t all[2] = {};
  group->all_gather(&own, all, 1, DType::i64).wait();
  if (group->rank() == 1) ::raise(SIGSTOP);
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
  EXPECT_THAT(outcomes[0].err, HasSubstr("all_reduce #2 waited 0.3 s for rank 1"));
  EXPECT_THAT(outcomes[1].err, HasSubstr("all_reduce #2 waited 0.3 s for rank 1"));
}

}  // namespace
}  // namespace lockstep::testing
