#include "tests/comm/control/meeting.h"

#include <fcntl.h>
#include <poll.h>

#include <atomic>
#include <filesystem>
#include <set>
#include <thread>

#include "tests/matchers.h"

namespace lockstep::testing {
namespace {

using control::Gathering;
using control::Settings;
using detail::Descriptor;

/// The errors of rank 0, which waits after a delay, and of each other rank. A rank that has not
/// joined by then gets rank 0's error from its on_wait function.
std::vector<std::string> failures(Settings rank_0, std::vector<Settings> others,
                                  std::chrono::milliseconds delay = 0ms) {
  Gathering gathering(std::move(rank_0));
  std::promise<std::string> promise;
  const auto ended = promise.get_future().share();
  std::vector<std::future<std::string>> coming;
  for (auto& settings : others) {
    settings.on_wait = [ended, on_wait = settings.on_wait] {
      on_wait();
      if (ended.wait_for(0s) == std::future_status::ready) throw CommError(ended.get());
    };
    coming.push_back(std::async(
        std::launch::async, [&] { return thrown([&] { join(gathering.offer(), settings); }); }));
  }
  std::this_thread::sleep_for(delay);
  std::vector<std::string> all{thrown([&] { gathering.wait(); })};
  promise.set_value(all.front());
  for (auto& one : coming) all.push_back(one.get());
  return all;
}

TEST(Meeting, MissingRanksAreNamedToAllWhoCame) {
  auto rank_0 = rank_of(0, 4);
  rank_0.timeout = 1s;
  EXPECT_THAT(failures(rank_0, {rank_of(2, 4, "b")}),
              Each("timeout: control: rank 0 of 4 on host a waited 1 s for ranks 1, 3"));
  // 2.5 s after rank 2 began to wait, as in a job whose hosts start one after the other.
  auto rank_2 = rank_of(2, 4, "b");
  rank_2.timeout = 1s;
  EXPECT_THAT(failures(rank_0, {rank_2}, 2500ms),
              Each("timeout: control: rank 0 of 4 on host a waited 1 s for ranks 1, 3"));
}

TEST(Meeting, RanksThatCannotMeetAreAnErrorOfAll) {
  EXPECT_THAT(
      failures(rank_of(0, 4), {rank_of(1, 4, "b"), rank_of(1, 4, "b"), rank_of(2, 4, "b")}),
      Each("control: two processes say that they are rank 1 of 4: on host b and on host b"));
  EXPECT_THAT(failures(rank_of(0, 2), {rank_of(2, 2, "b")}),
              Each("control: rank 2 on host b joined, expected ranks 1 to 1"));
  EXPECT_THAT(
      failures(rank_of(0, 3), {rank_of(2, 3, "b"), rank_of(1, 2, "c")}),
      Each("control: rank 1 on host c expects a world of 2 ranks, rank 0 on host a one of 3"));
  auto other = rank_of(1, 3, "b");
  other.version = "0.0.9";
  EXPECT_THAT(failures(rank_of(0, 3), {other, rank_of(2, 3, "b")}),
              Each(StartsWith("control: rank 1 on host b runs Lockstep 0.0.9, rank 0 on host a "
                              "runs ")));
}

TEST(Meeting, RankThatEndsBeforeAllHaveComeIsNamed) {
  auto settings = rank_of(0, 4);
  settings.timeout = 1s;
  Waiting rank_0(settings);
  accepted(rank_0.offer, rank_of(1, 4, "b"));
  EXPECT_EQ(thrown([&] { rank_0.members.get(); }),
            "timeout: control: rank 0 of 4 on host a waited 1 s for ranks 1 (its connection from "
            "host b ended), 2, 3");
}

TEST(Meeting, WhatEndsOneRanksWaitReachesAll) {
  std::atomic<int> looks = 0;
  auto given_up = rank_of(1, 3, "b");
  given_up.on_wait = [&] {
    if (++looks > 3) throw CommError("rank 1 gives up");
  };
  EXPECT_THAT(failures(rank_of(0, 3), {given_up}), Each("rank 1 gives up"));
  auto rank_0 = rank_of(0, 3);
  rank_0.on_wait = [&] {
    if (++looks > 20) throw TimeoutError("rank 0 gives up");
  };
  EXPECT_THAT(failures(rank_0, {rank_of(2, 3, "b")}), Each("timeout: rank 0 gives up"));
}

TEST(Meeting, StrangersAreRefusedAndInNobodysWay) {
  Waiting rank_0(rank_of(0, 2));
  const auto& offer = rank_0.offer;

  const auto silent = stranger(offer.addresses[0]);
  stranger(offer.addresses[0]);
  const auto half = stranger(offer.addresses[0]);
  say(half, hello(half, offer, rank_of(1, 2)).substr(0, 50));
  {
    const auto gone = stranger(offer.addresses[0]);
    say(gone, hello(gone, offer, rank_of(1, 2)).substr(0, 9));
  }
  const std::pair<std::string, const char*> refused[] = {
      {"GET / HTTP/1.1\r\n\r\n", "refuses: the received bytes are not a Lockstep frame"},
      {{"LSc1\0\0\xff\xff", 8}, "refuses: the received frame is of another Lockstep version"},
      {control::encode({.kind = control::Kind::left}), "refuses: its first frame is not a hello"}};
  for (const auto& [bytes, answer] : refused) {
    const auto other = stranger(offer.addresses[0]);
    say(other, bytes);
    EXPECT_THAT(heard(other), HasSubstr(answer));
  }

  auto wrong = offer;
  wrong.token[0] = static_cast<char>(wrong.token[0] + 1);
  EXPECT_THAT(thrown([&] { join(wrong, rank_of(1, 2, "b")); }),
              AllOf(HasSubstr("rank 1 of 2 on host b cannot reach rank 0 at "),
                    HasSubstr("refuses: it belongs to another world: its token differs")));

  EXPECT_EQ(join(offer, rank_of(1, 2)).rank, 0);
  EXPECT_EQ(rank_0.members.get().size(), 1u);
  EXPECT_THAT(heard(silent), HasSubstr("refuses: all ranks have joined"));
}

TEST(Meeting, AThousandSilentConnectionsAreInNobodysWay) {
  const OpenFiles limit(4096);
  Waiting rank_0(rank_of(0, 2));
  const auto& offer = rank_0.offer;
  std::vector<Descriptor> sockets;
  for (int i = 0; i < 1000; ++i) sockets.push_back(stranger(offer.addresses[0]));
  challenge(sockets.front());
  EXPECT_EQ(heard(sockets.front()), "") << "the oldest is closed, and may connect again";
  challenge(sockets.back());
  pollfd last{.fd = sockets.back().get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&last, 1, 200), 0) << "the last is still open";
  EXPECT_EQ(join(offer, rank_of(1, 2)).rank, 0);
  EXPECT_EQ(rank_0.members.get().size(), 1u);
}

TEST(Meeting, ShortageOfFilesIsNamed) {
  Gathering gathering(rank_of(0, 2));
  const auto& to = gathering.offer().addresses[0];
  const Descriptor comer(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  const OpenFiles limit(static_cast<rlim_t>(comer.get()) + 1);
  EXPECT_EQ(::connect(comer.get(), to.get(), to.length()), 0);
  EXPECT_THAT(thrown([&] { gathering.wait(); }),
              AllOf(HasSubstr("cannot open more files for the connections of rank 1"),
                    HasSubstr("ulimit -n")));
}

TEST(Meeting, InterfaceThatIsNotThereIsNamed) {
  auto settings = rank_of(0, 2);
  settings.interface = "nosuch0";
  EXPECT_THAT(thrown([&] { Gathering gathering(settings); }),
              HasSubstr("LOCKSTEP_INTERFACE: got 'nosuch0', expected one of: "));
  Gathering gathering(rank_of(0, 2));
  settings.rank = 1;
  EXPECT_THAT(thrown([&] { join(gathering.offer(), settings); }),
              HasSubstr("LOCKSTEP_INTERFACE: got 'nosuch0'"));
}

TEST(Meeting, LoopbackIsNoWayToAnotherHost) {
  Gathering gathering(rank_of(0, 2));
  auto offer = gathering.offer();
  offer.count = static_cast<std::uint32_t>(
      std::stable_partition(offer.addresses.begin(), offer.addresses.begin() + offer.count,
                            [](const auto& one) { return one.loopback(); }) -
      offer.addresses.begin());
  auto elsewhere = rank_of(1, 2, "b");
  elsewhere.network = 1;
  EXPECT_THAT(thrown([&] { join(offer, elsewhere); }),
              AllOf(HasSubstr("rank 1 of 2 on host b cannot connect to rank 0"),
                    HasSubstr("no network interface to other hosts")));
}

TEST(Meeting, GoesOverIpv6) {
  Waiting rank_0(rank_of(0, 2));
  auto offer = rank_0.offer;
  const auto end = offer.addresses.begin() + offer.count;
  const auto v6 = std::find_if(offer.addresses.begin(), end,
                               [](const auto& one) { return one.family() == AF_INET6; });
  if (v6 == end) {
    join(rank_0.offer, rank_of(1, 2));  // rank 0 waits for it
    GTEST_SKIP() << "no interface here has an IPv6 address";
  }
  offer.addresses[0] = *v6;
  offer.count = 1;
  const auto member = join(offer, rank_of(1, 2));
  EXPECT_EQ(member.connection.peer().text(), v6->text());
  EXPECT_THAT(v6->text(), StartsWith("["));
  EXPECT_EQ(rank_0.members.get().size(), 1u);
}

TEST(Meeting, NobodyListensThere) {
  control::Offer offer;
  {
    const Gathering gone(rank_of(0, 2));
    offer = gone.offer();
  }
  auto settings = rank_of(1, 2, "b");
  EXPECT_THAT(thrown([&] { join(offer, settings); }),
              AllOf(StartsWith("control: rank 1 of 2 on host b cannot reach rank 0 at "),
                    HasSubstr(": Connection refused")));
  offer.listening = false;
  settings.timeout = -1900ms;  // rank 0 has two seconds more to say what is wrong
  EXPECT_THAT(thrown([&] { join(offer, settings); }),
              AllOf(StartsWith("timeout: control: rank 1 of 2 on host b tried for "),
                    HasSubstr(": Connection refused")));
}

TEST(Meeting, SearchThatBlocksCountsWhole) {
  auto settings = rank_of(1, 2, "b");
  settings.timeout = 1s;  // three seconds with those that rank 0 has to time out first
  int searches = 0;
  const auto search = [&]() -> control::Offer {
    ++searches;
    std::this_thread::sleep_for(2s);
    throw CommError("no rank 0 yet");
  };
  EXPECT_THAT(thrown([&] { join(search, settings); }), HasSubstr("no rank 0 yet"));
  EXPECT_LE(searches, 2);
}

TEST(Meeting, OffersAreComparedWithoutTheBytesBetweenTheirFields) {
  alignas(control::Offer) std::array<std::array<std::byte, sizeof(control::Offer)>, 2> memory{};
  memory[1].fill(std::byte{0xff});
  const auto* first = new (memory[0].data()) control::Offer{.rank = 3};
  const auto* second = new (memory[1].data()) control::Offer{.rank = 3};
  EXPECT_EQ(*first == *second, true);
}

TEST(Meeting, NothingIsInherited) {
  const auto open = [] {
    std::set<int> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      found.insert(std::stoi(entry.path().filename()));
    }
    return found;
  };
  const auto before = open();
  Gathering gathering(rank_of(0, 2));
  auto coming = joining(gathering.offer(), rank_of(1, 2));
  const auto members = gathering.wait();
  const auto member = coming.get();
  int made = 0;
  for (const int fd : open()) {
    const int flags = ::fcntl(fd, F_GETFD);
    if (before.contains(fd) || flags < 0) continue;
    ++made;
    EXPECT_NE(flags & FD_CLOEXEC, 0)
        << std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd));
  }
  EXPECT_GE(made, 2);
}

}  // namespace
}  // namespace lockstep::testing
