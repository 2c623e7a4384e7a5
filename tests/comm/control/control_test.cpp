#include "comm/control/control.h"

#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>

#include "comm/control/connection.h"
#include "tests/comm/control/controlled_world.h"
#include "tests/matchers.h"

namespace lockstep::testing {
namespace {

using control::Connection;
using control::Control;
using control::Kind;
using detail::Descriptor;
using detail::Failure;

TEST(Control, RankThatEndsOrCrashesIsNamedToAll) {
  for (const bool crashes : {false, true}) {
    ControlledWorld world("aabb", 4);
    crashes ? world.rank(3).fail_by_crash("rank 3 (pid 7) crashed: SIGSEGV", 3) : world.end(3);
    for (const std::size_t rank : {0, 1, 2}) {
      const auto failure = world.failure_at(rank);
      EXPECT_EQ(failure.text,
                crashes ? "rank 3 (pid 7) crashed: SIGSEGV" : "rank 3 on host b has ended");
      EXPECT_EQ(failure.rank, 3);
    }
  }
}

TEST(Control, SingleRankWakesSeldom) {
  const auto switches = [] {
    rusage used{};
    ::getrusage(RUSAGE_SELF, &used);
    return used.ru_nvcsw;
  };
  const Control alone({}, [](const Failure&) {});
  const auto before = switches();
  std::this_thread::sleep_for(300ms);
  EXPECT_LT(switches() - before, 90);
}

TEST(Control, SilentHostIsNamedWithItsRanks) {
  ControlledWorld world("aabb", 2, 0, 1s);
  EXPECT_THAT(world.failure_at(0).text, StartsWith("no heartbeat from host b (ranks 2, 3) for 1."));
  EXPECT_THAT(world.failure_at(1).text, StartsWith("no heartbeat from host b (ranks 2, 3) for 1."));
}

TEST(Control, SilentRankOfALivingHostIsNamed) {
  ControlledWorld world("abb", 2, 0, 1s);
  EXPECT_THAT(world.failure_at(1).text, StartsWith("no heartbeat from host b (rank 2) for 1."));
}

/// Sets the loopback interface of this thread's network namespace up or down.
void set_loopback(bool up) {
  const detail::Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::memcpy(request.ifr_name, "lo", sizeof "lo");
  request.ifr_flags = up ? IFF_UP : 0;
  ASSERT_EQ(::ioctl(socket.get(), SIOCSIFFLAGS, &request), 0) << std::strerror(errno);
}

// Here the kernel itself would break a connection after one retransmission, 0.6 s.
TEST(Control, LinkIsDownForLessThanTheLimit) {
  bool has_namespace = false;
  std::thread([&] {
    has_namespace = ::unshare(CLONE_NEWNET) == 0 &&
                    (std::ofstream("/proc/sys/net/ipv4/tcp_retries2") << "1\n"
                                                                      << std::flush)
                        .good();
    if (!has_namespace) return;
    set_loopback(true);
    ControlledWorld world("ab", 2, 0, 3s);
    set_loopback(false);
    std::this_thread::sleep_for(1s);
    set_loopback(true);
    std::this_thread::sleep_for(2500ms);
    EXPECT_TRUE(world.knows_of_no_failure(0));
    EXPECT_TRUE(world.knows_of_no_failure(1));
    world.rank(0).fail({.text = "the end"});
    EXPECT_EQ(world.failure_at(1).text, "the end");
  }).join();
  if (!has_namespace) GTEST_SKIP() << "no network namespace can be made here (not root?)";
}

TEST(Control, NonsenseIsNamed) {
  const std::pair<std::string, const char*> cases[] = {
      {"GET / HTTP/1.1\r\n", ": the received bytes are not a Lockstep frame"},
      {control::encode({.kind = Kind::left}),
       ": the MAC of a received frame is wrong: the frame was changed, repeated or left out on its "
       "way, or its sender has another token"}};
  for (const auto& [nonsense, text] : cases) {
    for (const int serving : {0, 1}) {
      ControlledWorld world("ab", 1, serving);
      const int fd = world.idle_connection().fd();
      ASSERT_EQ(::send(fd, nonsense.data(), nonsense.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(nonsense.size()));
      const auto failure = world.failure_at(0);
      EXPECT_EQ(failure.rank, 1 - serving);
      EXPECT_EQ(failure.text,
                (serving == 0 ? "rank 1 on host b" : "rank 0 on host a") + std::string(text));
    }
  }
}

TEST(Connections, SendLostBytesAgainEverySecond) {
  constexpr int rto_max_ms = 44;  // TCP_RTO_MAX_MS
  int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  Connection connection{Descriptor(socket)};
  connection.allow_silence(3s);
  int most = 0;
  socklen_t length = sizeof most;
  if (::getsockopt(socket, IPPROTO_TCP, rto_max_ms, &most, &length) != 0) {
    GTEST_SKIP() << "this kernel is older than Linux 6.15";
  }
  EXPECT_EQ(most, 1000);
}

TEST(FailureFrames, HaveKindRankAndText) {
  using Of = detail::Failure::Kind;
  for (const auto kind : {Of::error, Of::crashed, Of{-1}, Of{7}}) {
    const auto failure =
        control::failure_in(control::failure_frame({.kind = kind, .rank = 3, .text = "why"}));
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->kind, kind == Of::error || kind == Of::crashed ? kind : Of::elsewhere);
    EXPECT_EQ(failure->rank, 3);
    EXPECT_EQ(failure->text, "why");
  }
  EXPECT_FALSE(control::failure_in({.kind = Kind::left}));
}

constexpr auto longest_silence = 1s;

/// A rank that watches rank 0 until `end` is closed, and then ends with 0. It ends with 1 if it
/// gives rank 0 up, and with 2 if it names its own stop as the reason.
[[noreturn]] void watch_rank_0(Descriptor socket, int end) {
  {
    std::vector<control::Member> others;
    others.push_back(
        {.connection = Connection(std::move(socket)), .host = "a", .heartbeat = longest_silence});
    control::Control control(std::move(others), [](const detail::Failure& failure) {
      ::_exit(failure.text.find("had been stopped for 1.") == std::string::npos ? 1 : 2);
    });
    char none = 0;
    while (::read(end, &none, 1) > 0) continue;
    control.leave();
  }
  ::_exit(0);
}

void await_heartbeat(Connection& connection) {
  for (;;) {
    pollfd waiting{.fd = connection.fd(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&waiting, 1, 30'000), 1);
    ASSERT_TRUE(connection.receive());
    if (connection.next()) return;
  }
}

/// Rank 0 of this process and a rank 1 of another.
class StoppedRank : public ::testing::Test {
 protected:
  StoppedRank() {
    std::array<int, 2> sockets{};
    std::array<int, 2> end{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets.data()), 0);
    EXPECT_EQ(::pipe(end.data()), 0);
    rank_1_ = ::fork();
    if (rank_1_ == 0) {
      ::close(sockets[0]);
      ::close(end[1]);
      watch_rank_0(Descriptor(sockets[1]), end[0]);
    }
    ::close(sockets[1]);
    ::close(end[0]);
    end_ = Descriptor(end[1]);
    connection_.emplace(Descriptor(sockets[0]));
    connection_->send({.kind = Kind::heartbeat});
    await_heartbeat(*connection_);
    // With nothing to read, rank 1 looks for silence first when it goes on.
    for (int unread = 1; unread != 0;) EXPECT_EQ(::ioctl(connection_->fd(), TIOCOUTQ, &unread), 0);
  }

  void stop_for_longer_than_the_limit() {
    int status = 0;
    ::kill(rank_1_, SIGSTOP);
    ASSERT_EQ(::waitpid(rank_1_, &status, WUNTRACED), rank_1_);
    std::this_thread::sleep_for(longest_silence + 500ms);
  }

  int exit_code() {
    int status = 0;
    EXPECT_EQ(::waitpid(rank_1_, &status, 0), rank_1_);
    EXPECT_TRUE(WIFEXITED(status));
    return WEXITSTATUS(status);
  }

  pid_t rank_1_ = -1;
  Descriptor end_;
  std::optional<Connection> connection_;
};

// The others cannot be heard by a process that is stopped: they are not silent.
TEST_F(StoppedRank, DoesNotGiveUpTheOthers) {
  stop_for_longer_than_the_limit();
  ASSERT_TRUE(connection_->receive());
  while (connection_->next()) continue;
  ::kill(rank_1_, SIGCONT);
  await_heartbeat(*connection_);
  connection_->send({.kind = Kind::left});
  end_.reset();
  EXPECT_EQ(exit_code(), 0) << "it gave up a rank that it could not hear";
}

TEST_F(StoppedRank, NamesItsStopWhereTheOthersHaveEnded) {
  stop_for_longer_than_the_limit();
  connection_.reset();
  ::kill(rank_1_, SIGCONT);
  EXPECT_EQ(exit_code(), 2) << "it does not name its stop";
}

}  // namespace
}  // namespace lockstep::testing
