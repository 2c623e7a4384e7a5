#include "comm/control/connection.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <string>

namespace lockstep::testing {
namespace {

using control::Connection;
using control::Kind;
using detail::Descriptor;

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

}  // namespace
}  // namespace lockstep::testing
