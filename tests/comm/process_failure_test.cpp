#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "comm/host/world/world.h"
#include "core/system/process.h"
#include "tests/comm/failures.h"
#include "tests/matchers.h"

// Ranks that are processes, and end.

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

bool is_stopped(std::int64_t pid) { return lockstep::detail::read_process(pid).stopped(); }

/// Every rank's process.
std::vector<std::int64_t> pids_of(Communicator& group) {
  const std::int64_t own = ::getpid();
  std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()));
  group.all_gather(&own, all.data(), 1, DType::i64).wait();
  return all;
}

/// Rank 0 is stopped while it waits and rank 1 while it computes, both for longer than the timeout.
/// Then all three ranks issue a barrier.
void stop_for_longer_than(std::chrono::milliseconds timeout, Communicator& group) {
  const auto all = pids_of(group);
  const auto is_asleep = [](std::int64_t pid) {
    return lockstep::detail::read_process(pid).state == 'S';
  };
  if (group.rank() == 1) ::raise(SIGSTOP);
  if (group.rank() == 2) {
    while (!is_stopped(all[1]) || !is_asleep(all[0])) ::usleep(1000);
    ::kill(static_cast<pid_t>(all[0]), SIGSTOP);
    while (!is_stopped(all[0])) ::usleep(1000);
    std::this_thread::sleep_for(timeout + std::chrono::milliseconds(500));
    ::kill(static_cast<pid_t>(all[0]), SIGCONT);
    ::usleep(500'000);  // rank 0 has time to give up
    ::kill(static_cast<pid_t>(all[1]), SIGCONT);
  }
  group.barrier().wait();
}

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

TEST(World, RecordedErrorExplainsTheFailure) {
  const auto world = host::World::create(2);  // ranks 4 and 5 of a larger world
  world->record_error(1, {.raised = true, .text = "caught"}, 5);
  world->fail({.kind = detail::Failure::Kind::left, .rank = 1, .text = "rank 5 left"});
  EXPECT_EQ(world->failure()->text, "rank 5 left");
  EXPECT_EQ(world->error_of(1)->text, "caught");

  world->record_error(1, {.rank = 4, .repeats = true, .text = "rank 4: disk full"}, 5);
  EXPECT_EQ(world->failure()->text, "rank 4: disk full");
  EXPECT_EQ(world->failure()->rank, 0);
  world->record_error(0, {.text = "no space"}, 4);
  EXPECT_EQ(world->failure()->text, "rank 4: no space");

  world->record_error(1, {.text = "later"}, 5);
  EXPECT_EQ(world->error_of(1)->text, "rank 4: disk full") << "the first error counts";
}

TEST(World, FailureOfTheWorldExplainsNothing) {
  const auto world = host::World::create(2);
  world->fail({.kind = detail::Failure::Kind::left, .rank = 1, .text = "rank 1 left"});
  world->record_error(1, {.kind = ErrorKind::communication, .text = "rank 1 left"}, 1);
  EXPECT_EQ(world->failure()->kind, detail::Failure::Kind::left);
  EXPECT_EQ(world->error_of(1)->kind, ErrorKind::communication);
  EXPECT_FALSE(world->error_of(0));
}

}  // namespace
}  // namespace lockstep::testing
