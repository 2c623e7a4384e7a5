#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/host/host.h"
#include "comm/host/peer_watch.h"
#include "comm/host/world/rendezvous.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "tests/matchers.h"
#include "tests/message_of.h"

// Ranks of a manually formed world that end before all have joined it. A waiting rank must raise an
// error long before the timeout, which is longer than the test may last.

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

constexpr auto longer_than_the_test = 10min;

std::string job(const std::string& name) {
  return lockstep::detail::concat(name, " of test ", ::getpid());
}

/// A rank in a process of its own, killed at the latest with its owner.
class OtherRank {
 public:
  explicit OtherRank(const std::function<void()>& body) : pid_(::fork()) {
    if (pid_ != 0) return;
    try {
      body();
    } catch (const Error&) {
    }
    for (;;) ::pause();
  }
  ~OtherRank() { end(); }
  OtherRank(const OtherRank&) = delete;
  OtherRank& operator=(const OtherRank&) = delete;

  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

std::string what_joining_throws(const std::shared_ptr<host::World>& world, int rank) {
  return message_of<Error>(
      [&] { host::create(world, rank, {.timeout = longer_than_the_test, .watch = true}); });
}

const auto rank_zero_named =
    AllOf(HasSubstr("rank 0 left the world (its process ended) before init"),
          Not(HasSubstr("never called init")));

TEST(ProcessesMeeting, RankZeroThatEndsBeforeOrWhileOthersWaitIsNamed) {
  for (const bool before : {true, false}) {
    const auto name = job(before ? "zero ends early" : "zero ends late");
    OtherRank zero([&] { host::rendezvous(name, 0, 3, longer_than_the_test); });
    const auto world = host::rendezvous(name, 1, 3, longer_than_the_test);
    if (before) zero.end();
    std::string thrown;
    std::thread waiting([&] { thrown = what_joining_throws(world, 1); });
    while (!before && !world->joined(1)) std::this_thread::yield();
    zero.end();
    waiting.join();
    EXPECT_THAT(thrown, rank_zero_named);
  }
}

TEST(ProcessesMeeting, RankThatEndsBeforeTheLastComesIsNamedByRankZero) {
  const auto name = job("one ends");
  auto zero = std::async(std::launch::deferred, [&] {
    return message_of<Error>([&] { host::rendezvous(name, 0, 3, longer_than_the_test); });
  });
  OtherRank one([&] {
    host::rendezvous(name, 1, 3, longer_than_the_test);
    ::raise(SIGKILL);
  });
  EXPECT_THAT(zero.get(),
              HasSubstr("init: rank 1 of 3 ended while ranks 2 had still to call init"));
}

TEST(ProcessesMeeting, RankThatEndsAfterTheLastCameIsNamed) {
  const auto name = job("two ends");
  OtherRank one([&] {
    const auto world = host::rendezvous(name, 1, 3, longer_than_the_test);
    ::raise(SIGKILL);  // before it joins
  });
  OtherRank two([&] {
    host::create(host::rendezvous(name, 2, 3, longer_than_the_test), 2,
                 {.timeout = longer_than_the_test, .watch = true});
  });
  const auto thrown = message_of<Error>([&] {
    host::create(host::rendezvous(name, 0, 3, longer_than_the_test), 0,
                 {.timeout = longer_than_the_test, .watch = true});
  });
  // Rank 0 may see the end before or after rank 2 has come.
  EXPECT_THAT(thrown, AnyOf(HasSubstr("rank 1 left the world (its process ended)"),
                            HasSubstr("rank 1 of 3 ended while")));
}

TEST(ProcessesMeeting, LauncherThatEndsBeforeTheLastRankStartsIsNamed) {
  const auto name = job("launcher ends");
  OtherRank launcher([] {});
  const host::LauncherWatch watch(launcher.pid(), "a launcher");
  launcher.end();
  const std::array<std::string, 2> meetings{name, job("nobody answers")};
  for (int rank = 0; rank < 2; ++rank) {
    const auto& meeting = meetings.at(static_cast<std::size_t>(rank));
    EXPECT_EQ(message_of<Error>([&] {
                host::rendezvous(meeting, rank, 3, longer_than_the_test,
                                 [&] { return watch.ended(); });
              }),
              lockstep::detail::concat("init rank ", rank,
                                       " of 3: the launcher of the ranks, a launcher, has ended"));
  }
}

TEST(ProcessesMeeting, WhatRankZeroGivesUpForIsHeardByThoseWhoCame) {
  const auto name = job("gives up");
  OtherRank zero([&] { host::rendezvous(name, 0, 3, 100ms); });
  const auto world = host::rendezvous(name, 1, 3, longer_than_the_test);
  EXPECT_THAT(what_joining_throws(world, 1),
              HasSubstr("rank 0 of 3 waited 0.1 s for ranks 2 to call init"));
}

}  // namespace
}  // namespace lockstep::testing
