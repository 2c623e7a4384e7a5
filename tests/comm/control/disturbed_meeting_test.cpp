#include <atomic>
#include <chrono>
#include <deque>
#include <initializer_list>
#include <thread>
#include <utility>

#include "tests/comm/control/meeting.h"
#include "tests/matchers.h"

namespace lockstep::testing {
namespace {

using control::Gathering;
using detail::Descriptor;

TEST(DisturbedMeeting, ConnectionReplacesEarlierOnesOfItsProcess) {
  Waiting rank_0(rank_of(0, 3));
  const auto& offer = rank_0.offer;
  const auto second = accepted(offer, rank_of(1, 3, "b"), 7, 2);
  const auto third = accepted(offer, rank_of(1, 3, "c"), 7, 3);
  heard(second);  // until rank 0 closes it
  const auto first = stranger(offer.addresses[0]);
  say(first, hello(first, offer, rank_of(1, 3, "d"), 7, 1));
  EXPECT_EQ(heard(first), "") << "an attempt that arrives late";
  EXPECT_EQ(join(offer, rank_of(2, 3)).rank, 0);
  EXPECT_EQ(rank_0.members.get().front().host, "c");
}

TEST(DisturbedMeeting, ConnectionThatItsSenderHasClosedIsNotAdmitted) {
  auto rank_0 = rank_of(0, 3);
  std::function<void()> close = [] {};
  rank_0.on_wait = [&] { std::exchange(close, [] {})(); };  // between two reads of rank 0
  Gathering gathering(rank_0);
  auto closing = stranger(gathering.offer().addresses[0]);
  std::vector<std::future<control::Member>> coming;
  close = [&] {
    close = [&] {
      say(closing, hello(closing, gathering.offer(), rank_of(1, 3, "b")));
      closing.reset();
      for (const int rank : {1, 2}) {
        coming.push_back(joining(gathering.offer(), rank_of(rank, 3, "c")));
      }
    };
  };
  EXPECT_EQ(gathering.wait().front().host, "c");
  for (auto& one : coming) EXPECT_EQ(one.get().rank, 0);
}

/// Threads that connect as fast as they can, each with up to so many open connections.
class Flood {
 public:
  Flood(const control::Offer& offer, std::size_t kept) {
    for (int i = 0; i < 3; ++i) {
      threads_.emplace_back([this, offer, kept] {
        std::deque<Descriptor> sockets;
        for (std::size_t at = 0; !ends_; ++at) {
          const auto& to = offer.addresses[at % offer.count];
          auto& socket = sockets.emplace_back(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
          // Such a close leaves no port in use.
          const linger reset{.l_onoff = 1, .l_linger = 0};
          ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
          ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &longest_, sizeof longest_);
          if (::connect(socket.get(), to.get(), to.length()) == 0) ++connections_;
          if (sockets.size() > kept) sockets.pop_front();
        }
      });
    }
  }
  ~Flood() {
    ends_ = true;
    for (auto& thread : threads_) thread.join();
  }
  Flood(const Flood&) = delete;
  Flood& operator=(const Flood&) = delete;

  int connections() const { return connections_; }

 private:
  static constexpr timeval longest_{.tv_sec = 0, .tv_usec = 200'000};  // of connect()
  std::atomic<bool> ends_ = false;
  std::atomic<int> connections_ = 0;
  std::vector<std::thread> threads_;
};

TEST(DisturbedMeeting, FloodDoesNotDelayTheTimeout) {
  const OpenFiles limit(4096);
  for (const std::size_t kept : {0u, 300u}) {
    auto rank_0 = rank_of(0, 2);
    rank_0.timeout = 2s;
    Gathering gathering(rank_0);
    const Flood flood(gathering.offer(), kept);
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_THAT(thrown([&] { gathering.wait(); }),
                StartsWith("timeout: control: rank 0 of 2 on host a waited 2 s for rank 1"));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 15s) << flood.connections();
    EXPECT_GT(flood.connections(), 250);
  }
}

TEST(DisturbedMeeting, FloodKeepsNoRankFromJoining) {
  const OpenFiles limit(4096);
  for (const std::size_t kept : {0u, 300u}) {
    Gathering gathering(rank_of(0, 4));
    const Flood flood(gathering.offer(), kept);
    std::vector<std::future<control::Member>> coming;
    for (const int rank : {1, 2, 3}) coming.push_back(joining(gathering.offer(), rank_of(rank, 4)));
    EXPECT_EQ(gathering.wait().size(), 3u);
    for (auto& one : coming) EXPECT_EQ(one.get().rank, 0);
  }
}

/// A socket that rank 0 listens on at this address.
Descriptor listening_on(const control::Address& at) {
  Descriptor socket(::socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  EXPECT_EQ(::bind(socket.get(), at.get(), at.length()), 0);
  EXPECT_EQ(::listen(socket.get(), 8), 0);
  return socket;
}

/// The next connection of rank 1, whose Hello was read and answered by these frames.
Descriptor answered(const Descriptor& listening, const control::Offer& offer,
                    std::initializer_list<control::Frame> frames) {
  Descriptor socket(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
  auto macs = challenged(socket, offer).macs;
  for (const auto& frame : frames) {
    const bool refuses = frame.kind == control::Kind::refused;
    say(socket, control::encode(frame, refuses ? nullptr : &macs.to_joiner));
  }
  return socket;
}

TEST(DisturbedMeeting, ProcessReplacesOneOfALostHost) {
  auto settings = rank_of(0, 3);
  settings.heartbeat = 1s;
  Waiting rank_0(settings);
  const auto& offer = rank_0.offer;
  const auto lost = accepted(offer, rank_of(1, 3, "b"), 7);  // sends nothing more
  std::this_thread::sleep_for(1500ms);
  auto second = joining(offer, rank_of(1, 3, "c"));
  std::this_thread::sleep_for(3s);  // then it has replaced the lost one
  EXPECT_EQ(join(offer, rank_of(2, 3)).rank, 0);
  EXPECT_EQ(second.get().rank, 0);
  EXPECT_EQ(rank_0.members.get().front().host, "c");
}

TEST(DisturbedMeeting, SilentListenerKeepsNoRankFromTheNextAddress) {
  const auto silent = listening_on(control::Address::any(AF_INET));
  auto settings = rank_of(0, 2);
  settings.timeout = 60s;
  Waiting rank_0(settings);
  auto offer = rank_0.offer;
  offer.count = 2;
  offer.addresses[1] = offer.addresses[0];
  offer.addresses[0] = control::Address::local(silent.get());
  settings.rank = 1;
  settings.host = "b";
  EXPECT_EQ(join(offer, settings).rank, 0);
  EXPECT_EQ(rank_0.members.get().size(), 1u);
}

TEST(DisturbedMeeting, RankJoinsAgainAfterRefusalsAndLostConnections) {
  control::Offer offer;
  {
    const Gathering gone(rank_of(0, 2));
    offer = gone.offer();
  }
  offer.count = 1;
  offer.listening = false;
  auto rank_1 = joining(offer, rank_of(1, 2, "b"));
  std::this_thread::sleep_for(500ms);  // while all connections are refused
  const auto listening = listening_on(offer.addresses[0]);
  const control::Frame yes{.kind = control::Kind::accepted,
                           .payload = control::bytes_of(control::Greeting{.heartbeat = 2000})};
  answered(listening, offer, {{.kind = control::Kind::refused, .payload = "another world"}});
  answered(listening, offer, {});
  answered(listening, offer, {yes});
  const auto connection = answered(listening, offer, {yes, {.kind = control::Kind::all_here}});
  EXPECT_EQ(rank_1.get().rank, 0);
}

}  // namespace
}  // namespace lockstep::testing
