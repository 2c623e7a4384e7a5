#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "core/text.h"
#include "tests/comm/failures.h"

// Children that a rank forks off. The rank's place in the world is its parent's.

namespace lockstep::testing {
namespace {

using lockstep::detail::concat;

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

class Fork : public ::testing::TestWithParam<const char*> {};

TEST_P(Fork, LeavesTheParentsWorldAlone) {
  const auto outcomes = run_processes(2, GetParam());
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.code, 0) << outcome.err;
}

INSTANTIATE_TEST_SUITE_P(Host, Fork,
                         ::testing::Values("a child destroys its group",
                                           "a child exits in the middle of a collective",
                                           "a child ends by an exception",
                                           "a child uses its group"),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& letter : name) letter = letter == ' ' ? '_' : letter;
                           return name;
                         });

}  // namespace
}  // namespace lockstep::testing
