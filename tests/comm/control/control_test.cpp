#include "comm/control/control.h"

#include <gtest/gtest.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "comm/control/connection.h"
#include "tests/comm/control/meeting.h"
#include "tests/matchers.h"

namespace lockstep::testing {
namespace {

using control::Connection;
using control::Control;
using control::Kind;
using control::Settings;
using detail::Descriptor;
using detail::Failure;

/// One rank's watch, and what it heard.
class Watcher {
 public:
  explicit Watcher(std::vector<control::Member> others)
      : control_(std::in_place, std::move(others),
                 [this](const Failure& failure) { promise_.set_value(failure); }) {}

  Control& control() { return *control_; }
  void end() { control_.reset(); }
  /// The failure that ended the world. Waits until this rank receives it.
  Failure failure() {
    EXPECT_EQ(future_.wait_for(30s), std::future_status::ready);
    return future_.get();
  }
  bool knows_of_none() { return future_.wait_for(0s) != std::future_status::ready; }

 private:
  std::promise<Failure> promise_;
  std::future<Failure> future_ = promise_.get_future();
  std::optional<Control> control_;
};

/// All ranks of a world. Ranks after the first `watching` do not serve their connections. Each
/// letter stands for a host.
struct World {
  std::vector<std::unique_ptr<Watcher>> watchers;
  std::vector<control::Member> idle;
};

World watch(const std::string& hosts, std::size_t watching, std::chrono::milliseconds heartbeat) {
  const int size = static_cast<int>(hosts.size());
  auto rank_0 = rank_of(0, size, hosts.substr(0, 1));
  rank_0.heartbeat = heartbeat;
  std::vector<Settings> others;
  for (int rank = 1; rank < size; ++rank) {
    others.push_back(rank_of(rank, size, hosts.substr(static_cast<std::size_t>(rank), 1)));
  }
  auto met = meet(rank_0, others);
  World world;
  world.watchers.push_back(std::make_unique<Watcher>(std::move(met.of_rank_0)));
  for (auto& member : met.is_agreed) {
    if (world.watchers.size() < watching) {
      std::vector<control::Member> one;
      one.push_back(std::move(member));
      world.watchers.push_back(std::make_unique<Watcher>(std::move(one)));
    } else {
      world.idle.push_back(std::move(member));
    }
  }
  return world;
}

World watch(const std::string& hosts) { return watch(hosts, hosts.size(), 60s); }

TEST(Control, FirstCauseReachesEveryRank) {
  using Of = detail::Failure::Kind;
  const std::pair<std::size_t, Of> cases[] = {{0, Of::error}, {1, Of::timeout}, {6, Of::elsewhere}};
  for (const auto& [from, kind] : cases) {
    auto world = watch("aabbccc");
    world.watchers[from]->control().fail({.kind = kind, .rank = 4, .text = "the cause"});
    for (std::size_t rank = 0; rank < world.watchers.size(); ++rank) {
      if (rank == from) {
        EXPECT_TRUE(world.watchers[rank]->knows_of_none()) << "its own";
        continue;
      }
      const auto failure = world.watchers[rank]->failure();
      EXPECT_EQ(failure.text, "the cause");
      EXPECT_EQ(failure.rank, 4);
      EXPECT_EQ(failure.kind, kind);
    }
  }
}

TEST(Control, LongCausesAreCut) {
  auto world = watch("ab");
  world.watchers[1]->control().fail({.text = std::string(100'000, 'x')});
  EXPECT_EQ(world.watchers[0]->failure().text, std::string(control::longest_failure_text, 'x'));
}

TEST(Control, RankThatEndsIsNamedToAll) {
  auto world = watch("aabb");
  world.watchers[3]->end();
  for (const int rank : {0, 1, 2}) {
    EXPECT_EQ(world.watchers[static_cast<std::size_t>(rank)]->failure().text,
              "rank 3 on host b has ended");
  }
}

TEST(Control, RankThatHasLeftMayEnd) {
  auto world = watch("abc");
  world.watchers[1]->control().leave();
  world.watchers[1]->end();
  world.watchers[2]->control().fail({.text = "another cause"});
  EXPECT_EQ(world.watchers[0]->failure().text, "another cause");
  world.watchers.clear();

  world = watch("abc");
  world.watchers[0]->control().leave();
  world.watchers[0]->end();
  world.watchers[1]->control().leave();
  EXPECT_TRUE(world.watchers[1]->knows_of_none());
  EXPECT_TRUE(world.watchers[2]->knows_of_none());
}

TEST(Control, SingleRankWakesSeldom) {
  const auto switches = [] {
    rusage used{};
    ::getrusage(RUSAGE_SELF, &used);
    return used.ru_nvcsw;
  };
  const Control alone({}, [](const Failure&) {});
  const auto before = switches();
  std::this_thread::sleep_for(1s);
  EXPECT_LT(switches() - before, 300);
}

TEST(Control, SilentHostIsNamedWithItsRanks) {
  auto world = watch("aabb", 2, 1s);
  EXPECT_THAT(world.watchers[0]->failure().text,
              StartsWith("no heartbeat from host b (ranks 2, 3) for 1."));
  EXPECT_THAT(world.watchers[1]->failure().text,
              StartsWith("no heartbeat from host b (ranks 2, 3) for 1."));
}

TEST(Control, SilentRankOfALivingHostIsNamed) {
  auto world = watch("abb", 2, 1s);
  EXPECT_THAT(world.watchers[1]->failure().text,
              StartsWith("no heartbeat from rank 2 on host b for 1."));
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
    auto world = watch("ab", 2, 3s);
    set_loopback(false);
    std::this_thread::sleep_for(1s);
    set_loopback(true);
    std::this_thread::sleep_for(2500ms);
    EXPECT_TRUE(world.watchers[0]->knows_of_none());
    EXPECT_TRUE(world.watchers[1]->knows_of_none());
    world.watchers[0]->control().fail({.text = "the end"});
    EXPECT_EQ(world.watchers[1]->failure().text, "the end");
  }).join();
  if (!has_namespace) GTEST_SKIP() << "no network namespace can be made here (not root?)";
}

TEST(Control, NonsenseIsNamed) {
  auto met = meet(rank_of(0, 2, "a"), {rank_of(1, 2, "b")});
  Watcher watcher(std::move(met.of_rank_0));
  const std::string nonsense = "GET / HTTP/1.1\r\n";
  ASSERT_EQ(
      ::send(met.is_agreed[0].connection.fd(), nonsense.data(), nonsense.size(), MSG_NOSIGNAL),
      static_cast<ssize_t>(nonsense.size()));
  EXPECT_EQ(watcher.failure().text,
            "rank 1 on host b: the received bytes are not a Lockstep frame");
}

TEST(Frames, AreWholeInWhateverPiecesTheyCome) {
  const std::string stream = control::encode({.kind = control::Kind::left}) +
                             control::encode({.kind = control::Kind::failed, .payload = "why"});
  control::FrameReader reader;
  std::vector<std::string> found;
  for (const char byte : stream) {
    reader.add({&byte, 1});
    while (const auto frame = reader.next()) {
      found.push_back(std::to_string(static_cast<int>(frame->kind)) + frame->payload);
    }
  }
  EXPECT_EQ(found, (std::vector<std::string>{"6", "5why"}));
}

TEST(Connections, KeepWhatDoesNotFitTheSocketYet) {
  std::array<int, 2> sockets{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets.data()), 0);
  Connection from{Descriptor(sockets[0])};
  Connection to{Descriptor(sockets[1])};
  const auto text = [](int number) { return std::to_string(number) + std::string(3000, '.'); };
  const auto send = [&](int number) { from.send({.kind = Kind::failed, .payload = text(number)}); };
  int sent = 0;
  while (from.flushed() && sent < 10'000) send(sent++);
  ASSERT_FALSE(from.flushed()) << "it holds what a socket cannot";
  for (int more = 0; more < 20; ++more) send(sent++);
  int received = 0;
  for (bool news = true; news;) {
    news = false;
    ASSERT_TRUE(to.receive());
    while (const auto frame = to.next()) {
      EXPECT_EQ(frame->payload, text(received++));
      news = true;
    }
    from.flush();
  }
  EXPECT_EQ(received, sent);
  EXPECT_TRUE(from.flushed());
}

TEST(FailureFrames, HaveKindRankAndText) {
  using Of = detail::Failure::Kind;
  for (const auto kind : {Of::error, Of::crashed, Of{-1}, Of{7}}) {
    const auto failure =
        control::failure_in(control::failure_frame({.kind = kind, .rank = 3, .text = "why"}));
    ASSERT_TRUE(failure);
    const bool known = kind == Of::error || kind == Of::crashed;
    EXPECT_EQ(failure->kind, known ? kind : Of::elsewhere);
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
