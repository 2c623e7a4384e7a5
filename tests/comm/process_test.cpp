#include "core/system/process.h"

#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <tuple>
#include <utility>

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

const ProcessBody sender_killed("a sender is killed", [](const auto& group) {
  if (group->rank() == 1) ::raise(SIGKILL);
  group->recv(floats, 1, DType::f32, group->rank() == 0 ? any_source : 0).wait();
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

/// Rank 0 is stopped while it waits and rank 1 while it computes, both for longer than the timeout.
/// Then all three ranks issue a barrier.
constexpr auto timeout_of_job = 2s;
const ProcessBody job_stopped("the job is stopped", [](const auto& group) {
  const auto all = pids_of(*group);
  if (group->rank() == 1) ::raise(SIGSTOP);
  if (group->rank() == 2) {
    while (!is_stopped(all[1]) || lockstep::detail::read_process(all[0]).state != 'S') {
      ::usleep(1000);
    }
    ::kill(static_cast<pid_t>(all[0]), SIGSTOP);
    while (!is_stopped(all[0])) ::usleep(1000);
    std::this_thread::sleep_for(timeout_of_job + 500ms);
    ::kill(static_cast<pid_t>(all[0]), SIGCONT);
    ::usleep(500'000);  // rank 0 has time to give up
    ::kill(static_cast<pid_t>(all[1]), SIGCONT);
  }
  group->barrier().wait();
});

TEST(Processes, AStoppedJobGoesOnThoughTheTimeoutHasPassed) {
  for (const auto& outcome : run_processes(3, "the job is stopped", timeout_of_job))
    EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST(Processes, ARankThatEndsIsNamed) {
  for (const auto& [name, end, before] :
       {std::tuple("a sender is killed", "signal 9", "recv #1 from"),
        {"rank 1 exits 0", "exit code 0", "barrier #1"}}) {
    SCOPED_TRACE(name);
    const auto outcomes = run_processes(3, name);
    EXPECT_EQ(concat(outcomes[1].exited ? "exit code " : "signal ", outcomes[1].code), end);
    for (const std::size_t rank : {0, 2}) {
      EXPECT_EQ(outcomes[rank].code, 1);
      EXPECT_THAT(outcomes[rank].err,
                  HasSubstr(concat("rank 1 left the world (", end, ") before ", before)));
    }
  }
}

TEST(Processes, StoppedRankIsFoundByTheTimeout) {
  const auto outcomes = run_processes(2, "rank 1 is stopped");
  for (const auto& outcome : outcomes) {
    EXPECT_THAT(outcome.err, HasSubstr("all_reduce #2 waited 0.3 s for rank 1 (stopped)"));
  }
}

TEST(SignalsBlocked, LeavesThreadsTheirFaults) {
  sigset_t blocked{};
  {
    const detail::SignalsBlocked scope;
    std::thread([&] { ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked); }).join();
  }
  EXPECT_EQ(::sigismember(&blocked, SIGTERM), 1);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    EXPECT_EQ(::sigismember(&blocked, fault), 0) << fault;
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

/// Runs fn in a child of this process. Throws if the child has not ended with exit code 0.
void in_a_child(const std::function<void()>& fn) {
  const auto text = in_child([&] { return fn(), std::string(); });
  if (!text.empty()) throw std::runtime_error("child: " + text);
}

/// Throws unless fn throws an InvalidArgument that names the child.
void expect_refusal(const char* what, const std::function<void()>& fn) {
  const auto text = message_of<InvalidArgument>(fn);
  const auto expected = concat("rank 1 is used in process ", ::getpid(), ", a forked child of ",
                               ::getppid(), " that joined the world");
  if (text.find(expected) == text.npos) throw std::runtime_error(concat(what, ": got ", text));
}

/// The child destroys the group, which only this rank's process holds, by letting go of it.
void destroy_in_a_child(std::shared_ptr<Communicator>& group) {
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
}

void exit_in_the_middle_of_a_collective(Communicator& group) {
  auto work = group.all_reduce(floats, 8, DType::f32, ReduceOp::sum);
  if (group.rank() == 1) {
    const pid_t child = ::fork();
    if (child == 0) std::exit(0);
    ::waitpid(child, nullptr, 0);
  }
  work.wait();
}

void throw_in_a_child(Communicator& group) {
  auto work = group.barrier();
  if (group.rank() == 1) {
    in_a_child([&] {
      try {
        const auto moved = std::move(work);
        throw std::runtime_error("of the child");
      } catch (const std::runtime_error&) {
      }
      group.fail("of the child");
      group.fail_with({.kind = detail::Failure::Kind::timeout, .text = "of the child"});
    });
  }
  work.wait();
}

void use_in_a_child(Communicator& group) {
  if (group.rank() == 0) {
    group.recv(floats, 1, DType::f32, 1).wait();
    return group.send(floats, 1, DType::f32, 1).wait();
  }
  auto work = group.recv(floats, 1, DType::f32, 0);  // not sent before the child has ended
  in_a_child([&] {
    expect_refusal("all_reduce",
                   [&] { group.all_reduce(floats, 8, DType::f32, ReduceOp::sum).wait(); });
    expect_refusal("wait", [&] { work.wait(); });
    expect_refusal("ready", [&] { work.ready(); });
    expect_refusal("split", [&] { group.split(0, 0); });
    expect_refusal("allocate", [&] { group.allocate(1); });
    expect_refusal("make_progress", [&] { group.make_progress(); });
    expect_refusal("send", [&] { group.send(floats, 1, DType::f32, 0).wait(); });
  });
  group.send(floats, 1, DType::f32, 0).wait();
  work.wait();
}

const ProcessBody forks("rank 1 forks children", [](std::shared_ptr<Communicator> group) {
  destroy_in_a_child(group);
  exit_in_the_middle_of_a_collective(*group);
  throw_in_a_child(*group);
  use_in_a_child(*group);
  group->barrier().wait();
});

TEST(Fork, LeavesTheParentsWorldAlone) { expect_processes(2, "rank 1 forks children"); }

}  // namespace
}  // namespace lockstep::testing
