#include "comm/host/world/rendezvous.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <utility>

#include "comm/control/address.h"
#include "comm/host/host.h"
#include "comm/host/peer_watch.h"
#include "core/system/process.h"
#include "core/text.h"
#include "tests/comm/failures.h"
#include "tests/matchers.h"

namespace lockstep::testing {
namespace {

using lockstep::detail::Descriptor;

/// A job of this test and of the processes that it forks.
const auto test_process = ::getpid();
std::string job(const std::string& name) {
  return lockstep::detail::concat(name, " of test ", test_process);
}

/// A call that joins a job.
std::function<void()> joins(const std::string& name, int rank, int size,
                            std::chrono::milliseconds timeout = 20s) {
  return [=] { host::rendezvous(job(name), rank, size, timeout); };
}

TEST(Rendezvous, OtherNumbersOfRanksAreNamedOnBothSides) {
  EXPECT_THAT(what_calls_threw({joins("sizes", 0, 2), joins("sizes", 1, 3)}),
              Each(HasSubstr("rank 1 expects a world of 3 ranks, rank 0 one of 2")));
}

TEST(Rendezvous, TheSameRankTwiceIsNamed) {
  const auto twice = joins("twice", 1, 3, 2s);
  EXPECT_THAT(what_calls_threw({joins("twice", 0, 3), twice, twice})[0],
              HasSubstr("two processes say that they are rank 1 of 3"));
}

TEST(Rendezvous, SecondRankZeroIsRefused) {
  const auto zero = joins("zero", 0, 2, 500ms);
  EXPECT_THAT(what_calls_threw({zero, zero}),
              UnorderedElementsAre(HasSubstr("does another process say that it is rank 0"),
                                   HasSubstr("waited 0.5 s for rank 1")));
}

/// An abstract address, and sockets that this process has there.
class Address {
 public:
  explicit Address(const std::string& name) : address_(name) {}

  /// That of a job, as its rank 0 makes it.
  static Address of(const std::string& job) {
    std::string name;
    std::thread rank_0([&] { EXPECT_THROW(host::rendezvous(job, 0, 2, 200ms), TimeoutError); });
    while (name.empty()) name = own_address();
    rank_0.join();
    return Address(name);
  }

  Descriptor bound() const {
    Descriptor made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(made.get(), address_.get(), address_.length()), 0);
    return made;
  }
  Descriptor connected() const {
    Descriptor made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    while (::connect(made.get(), address_.get(), address_.length()) != 0) std::this_thread::yield();
    return made;
  }

 private:
  /// The one that this process listens at, among those of other tests.
  static std::string own_address() {
    const std::string key = lockstep::detail::concat("@lockstep-", ::geteuid(), "-");
    std::set<std::string> own;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      own.insert(std::filesystem::read_symlink(entry.path(), gone).string());
    }
    std::ifstream in("/proc/net/unix");
    for (std::string line; std::getline(in, line);) {
      const auto at = line.find(key);
      if (at == std::string::npos) continue;
      const auto inode = line.substr(line.rfind(' ', at - 2) + 1, at - 2 - line.rfind(' ', at - 2));
      if (own.contains("socket:[" + inode + "]")) return line.substr(at + 1);
    }
    return "";
  }

  control::UnixAddress address_;
};

std::string this_process() { return lockstep::detail::concat("process ", ::getpid(), " ("); }

TEST(Rendezvous, SilentConnectionsDelayNoRank) {
  const auto address = Address::of(job("silent"));
  std::vector<Descriptor> silent;
  std::promise<void> connected;
  const auto come = [&] {
    for (int i = 0; i < 20; ++i) silent.push_back(address.connected());
    connected.set_value();
  };
  const auto rank_1 = [&] {
    connected.get_future().wait();
    joins("silent", 1, 2)();
  };
  EXPECT_THAT(what_calls_threw({joins("silent", 0, 2), come, rank_1}), Each(""));
}

TEST(Rendezvous, AHolderOfItsAddressThatDoesNotAnswerIsNamed) {
  const auto address = Address::of(job("squat"));
  const auto rank_1_throws = [] { return what_calls_threw({joins("squat", 1, 2, 300ms)})[0]; };
  const auto held = address.bound();
  EXPECT_THAT(rank_1_throws(), HasSubstr("rank 1 of 2 waited 0.3 s for rank 0 to call init; it "
                                         "was not started, has ended, or does not run"));
  ASSERT_EQ(::listen(held.get(), 0), 0);
  EXPECT_THAT(rank_1_throws(), HasSubstr("rank 0 to answer; " + this_process()));
  // That connection fills the queue: another connect() that blocks would wait for ever.
  EXPECT_THAT(rank_1_throws(), HasSubstr("waited 0.3 s for rank 0 to "));
}

TEST(Rendezvous, AnotherUserIsNotLetIn) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  std::string got = "an answer";
  const auto address = Address::of(job("stranger"));
  const auto stranger = [&] {
    // Of this thread alone, which glibc's wrapper would not do.
    constexpr long nobody = 65534;
    ASSERT_EQ(::syscall(SYS_setresuid, nobody, nobody, nobody), 0);
    const auto connection = address.connected();
    const int fd = connection.get();
    const host::Hello hello{.magic = host::Hello::expected_magic, .rank = 1, .size = 2};
    ::send(fd, &hello, sizeof hello, MSG_NOSIGNAL);
    char byte = 0;
    if (::recv(fd, &byte, 1, 0) <= 0) got = "nothing";
  };
  std::promise<void> went;
  const auto come = [&] {
    stranger();
    went.set_value();
  };
  const auto rank_1 = [&] {
    went.get_future().wait();
    joins("stranger", 1, 2)();
  };
  EXPECT_THAT(what_calls_threw({joins("stranger", 0, 2), come, rank_1}), Each(""));
  EXPECT_EQ(got, "nothing");
}

// Ranks of a manually formed world that end before all have joined it. A waiting rank must raise an
// error long before the timeout, which is longer than the test may last.

constexpr auto longer_than_the_test = 10min;

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

std::shared_ptr<host::World> meet(const std::string& name, int rank) {
  return host::rendezvous(job(name), rank, 3, longer_than_the_test);
}

std::string what_joining_throws(const std::function<std::shared_ptr<host::World>()>& world,
                                int rank) {
  return message_of<Error>(
      [&] { host::create(world(), rank, {.timeout = longer_than_the_test, .watch = true}); });
}

TEST(ProcessesMeeting, RankZeroThatEndsBeforeOrWhileOthersWaitIsNamed) {
  for (const bool before : {true, false}) {
    const auto* name = before ? "zero ends early" : "zero ends late";
    OtherRank zero([&] { meet(name, 0); });
    const auto world = meet(name, 1);
    if (before) zero.end();
    std::string thrown;
    std::thread waiting([&] { thrown = what_joining_throws([&] { return world; }, 1); });
    while (!before && !world->joined(1)) std::this_thread::yield();
    zero.end();
    waiting.join();
    EXPECT_THAT(thrown, AllOf(HasSubstr("rank 0 left the world (its process ended) before init"),
                              Not(HasSubstr("never called init"))));
  }
}

TEST(ProcessesMeeting, RankThatEndsBeforeTheLastComesIsNamedByRankZero) {
  OtherRank one([] {
    meet("one ends", 1);
    ::raise(SIGKILL);
  });
  EXPECT_THAT(message_of<Error>([] { meet("one ends", 0); }),
              HasSubstr("init: rank 1 of 3 ended while rank 2 had still to call init"));
}

TEST(ProcessesMeeting, RankThatEndsAfterTheLastCameIsNamed) {
  OtherRank one([] {
    const auto world = meet("two ends", 1);
    ::raise(SIGKILL);  // before it joins
  });
  OtherRank two([] { what_joining_throws([] { return meet("two ends", 2); }, 2); });
  // Rank 0 may see the end before or after rank 2 has come.
  EXPECT_THAT(what_joining_throws([] { return meet("two ends", 0); }, 0),
              AnyOf(HasSubstr("rank 1 left the world (its process ended)"),
                    HasSubstr("rank 1 of 3 ended while")));
}

TEST(ProcessesMeeting, LauncherThatEndsBeforeTheLastRankStartsIsNamed) {
  OtherRank launcher([] {});
  const host::LauncherWatch watch(launcher.pid(), "a launcher");
  launcher.end();
  for (const int rank : {0, 1}) {  // nobody answers rank 1
    EXPECT_EQ(message_of<Error>([&] {
                host::rendezvous(job(rank == 0 ? "launcher ends" : "nobody answers"), rank, 3,
                                 longer_than_the_test, [&] { return watch.ended(); });
              }),
              lockstep::detail::concat("init rank ", rank,
                                       " of 3: the launcher of the ranks, a launcher, has ended"));
  }
}

TEST(ProcessesMeeting, WhatRankZeroGivesUpForIsHeardByThoseWhoCame) {
  OtherRank zero(joins("gives up", 0, 3, 100ms));
  EXPECT_THAT(what_joining_throws([] { return meet("gives up", 1); }, 1),
              HasSubstr("rank 0 of 3 waited 0.1 s for rank 2 to call init"));
}

}  // namespace
}  // namespace lockstep::testing
