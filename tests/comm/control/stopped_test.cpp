#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "comm/control/control.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using control::Connection;
using control::Kind;
using detail::Descriptor;

constexpr auto limit = 2s;  // longest silence

/// A rank that watches rank 0 until `end` is closed. Its exit code says whether it gave rank 0 up.
[[noreturn]] void watch_rank_0(Descriptor socket, int end) {
  std::atomic<bool> failed = false;
  {
    std::vector<control::Member> others;
    others.push_back(
        {.connection = Connection(std::move(socket)), .host = "a", .heartbeat = limit});
    control::Control control(std::move(others), [&](const control::Failure&) { failed = true; });
    char none = 0;
    while (::read(end, &none, 1) > 0) continue;
    control.leave();
  }
  ::_exit(failed ? 1 : 0);
}

void await_heartbeat(Connection& connection) {
  for (;;) {
    pollfd waiting{.fd = connection.fd(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&waiting, 1, 30'000), 1);
    ASSERT_TRUE(connection.receive());
    if (connection.next()) return;
  }
}

// The others cannot be heard by a process that is stopped: they are not silent.
TEST(Control, TimeInWhichARankIsStoppedIsNoSilenceOfTheOthers) {
  std::array<int, 2> sockets{};
  std::array<int, 2> end{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets.data()), 0);
  ASSERT_EQ(::pipe(end.data()), 0);
  const pid_t rank_1 = ::fork();
  ASSERT_GE(rank_1, 0);
  if (rank_1 == 0) {
    ::close(sockets[0]);
    ::close(end[1]);
    watch_rank_0(Descriptor(sockets[1]), end[0]);
  }
  ::close(sockets[1]);
  ::close(end[0]);
  Connection connection{Descriptor(sockets[0])};
  connection.send({.kind = Kind::heartbeat});
  await_heartbeat(connection);
  // With nothing to read, rank 1 looks for silence first when it goes on.
  for (int unread = 1; unread != 0;) ASSERT_EQ(::ioctl(connection.fd(), TIOCOUTQ, &unread), 0);
  int status = 0;
  ::kill(rank_1, SIGSTOP);
  ASSERT_EQ(::waitpid(rank_1, &status, WUNTRACED), rank_1);
  std::this_thread::sleep_for(limit + 500ms);
  ASSERT_TRUE(connection.receive());
  while (connection.next()) continue;
  ::kill(rank_1, SIGCONT);
  await_heartbeat(connection);
  connection.send({.kind = Kind::left});
  ::close(end[1]);
  ASSERT_EQ(::waitpid(rank_1, &status, 0), rank_1);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "it gave up a rank that it could not hear";
}

}  // namespace
}  // namespace lockstep::testing
