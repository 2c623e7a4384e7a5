#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "comm/control/control.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using control::Connection;
using control::Kind;
using detail::Descriptor;

constexpr auto limit = 1s;  // longest silence

/// A rank that watches rank 0 until `end` is closed, and then ends with 0. It ends with 1 if it
/// gives rank 0 up, and with 2 if it names its own stop as the reason.
[[noreturn]] void watch_rank_0(Descriptor socket, int end) {
  {
    std::vector<control::Member> others;
    others.push_back(
        {.connection = Connection(std::move(socket)), .host = "a", .heartbeat = limit});
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
    std::this_thread::sleep_for(limit + 500ms);
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
