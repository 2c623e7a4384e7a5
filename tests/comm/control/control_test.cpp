#include "comm/control/control.h"

#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#include <cstring>
#include <fstream>
#include <thread>

#include "tests/comm/control/meeting.h"
#include "tests/matchers.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using control::Control;
using control::Settings;
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

}  // namespace
}  // namespace lockstep::testing
