#include "core/system/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/host/world/world.h"
#include "core/text.h"
#include "tests/comm/failures.h"
#include "tests/matchers.h"

// Ranks that are processes, and end.

namespace lockstep::testing {
namespace {

using lockstep::detail::concat;

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

// Children that a rank forks off. The rank's place in the world is its parent's.

/// Runs fn in a child of this process, which ends as fn does. Throws when it ended otherwise than
/// with exit code 0.
void in_a_child(const std::function<void()>& fn) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      fn();
      ::_exit(0);
    } catch (const std::exception& error) {
      std::cerr << "child: " << error.what() << std::endl;
      ::_exit(1);
    }
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child || status != 0) {
    throw std::runtime_error(concat("the child ended with status ", status));
  }
}

/// Throws unless fn throws an InvalidArgument that names the child.
void expect_refusal(const char* what, const std::function<void()>& fn) {
  try {
    fn();
  } catch (const InvalidArgument& error) {
    const std::string text = error.what();
    const auto expected = concat("rank 1 is used in process ", ::getpid(), ", a forked child of ",
                                 ::getppid(), " that joined the world");
    if (text.find(expected) != text.npos) return;
    throw std::runtime_error(concat(what, ": got ", text));
  }
  throw std::runtime_error(concat(what, ": nothing was thrown"));
}

/// The group as only this rank holds it: the child destroys it by letting go of it.
using Held = std::shared_ptr<Communicator>;

const ProcessBody destroys("a child destroys its group", [](Held group) {
  auto half = group->split(0, 0);
  auto memory = group->allocate(1000);
  if (group->rank() == 1) {
    in_a_child([&] {
      half.reset();
      memory.reset();
      group.reset();
    });
  }
  half->barrier().wait();
  group->barrier().wait();
});

const ProcessBody exits_in_between("a child exits in the middle of a collective", [](Held group) {
  auto work = group->all_reduce(floats, 8, DType::f32, ReduceOp::sum);
  if (group->rank() == 1) {
    const pid_t child = ::fork();
    if (child == 0) std::exit(0);
    ::waitpid(child, nullptr, 0);
  }
  work.wait();
  group->barrier().wait();
});

const ProcessBody throws("a child ends by an exception", [](Held group) {
  if (group->rank() == 1) {
    auto work = group->barrier();
    in_a_child([&] {
      try {
        const auto moved = std::move(work);
        throw std::runtime_error("of the child");
      } catch (const std::runtime_error&) {
      }
      group->fail("of the child");
      group->fail_with({.kind = detail::Failure::Kind::timeout, .text = "of the child"});
    });
    work.wait();
  } else {
    group->barrier().wait();
  }
  group->barrier().wait();
});

const ProcessBody uses("a child uses its group", [](Held group) {
  if (group->rank() == 1) {
    auto work = group->recv(floats, 1, DType::f32, 0);  // not sent before the child has ended
    in_a_child([&] {
      expect_refusal("all_reduce",
                     [&] { group->all_reduce(floats, 8, DType::f32, ReduceOp::sum).wait(); });
      expect_refusal("wait", [&] { work.wait(); });
      expect_refusal("ready", [&] { work.ready(); });
      expect_refusal("split", [&] { group->split(0, 0); });
      expect_refusal("allocate", [&] { group->allocate(1); });
      expect_refusal("make_progress", [&] { group->make_progress(); });
      expect_refusal("send", [&] { group->send(floats, 1, DType::f32, 0).wait(); });
    });
    group->send(floats, 1, DType::f32, 0).wait();
    work.wait();
  } else {
    group->recv(floats, 1, DType::f32, 1).wait();
    group->send(floats, 1, DType::f32, 1).wait();
  }
  group->barrier().wait();
});

TEST(Fork, LeavesTheParentsWorldAlone) {
  for (const char* name :
       {"a child destroys its group", "a child exits in the middle of a collective",
        "a child ends by an exception", "a child uses its group"}) {
    SCOPED_TRACE(name);
    expect_processes(2, name);
  }
}

}  // namespace
}  // namespace lockstep::testing
