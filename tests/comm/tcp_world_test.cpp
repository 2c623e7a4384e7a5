#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <memory>

#include "comm/communicator.h"
#include "comm/tcp/tcp.h"
#include "lockstep/error.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

const messages::Options options{.timeout = 20s, .transport = TransportKind::tcp, .records = false};

/// Rank 1 of two. It gets rank 0's offer by the pipe, joins and ends.
[[noreturn]] void run_rank_1(int pipe) {
  control::Offer offer;
  if (::read(pipe, static_cast<void*>(&offer), sizeof offer) != sizeof offer) ::_exit(1);
  try {
    tcp::create(options, {.rank = 1, .size = 2, .find = [&] { return offer; }});
  } catch (const Error&) {
    ::_exit(2);
  }
  ::_exit(0);
}

TEST(TcpWorld, IsFreedAfterAFailure) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "what the world has left is kept until the next one, with an ended thread";
#endif
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const auto rank_1 = ::fork();
  if (rank_1 == 0) run_rank_1(ends[0]);
  auto world = tcp::create(
      options, {.rank = 0, .size = 2, .publish = [&](const control::Offer& offer) {
                  EXPECT_EQ(::write(ends[1], &offer, sizeof offer), ssize_t{sizeof offer});
                }});
  const std::weak_ptr<Communicator> observed = world;
  EXPECT_THROW(world->barrier().wait(), CommError);
  world.reset();
  EXPECT_TRUE(observed.expired());
  int status = 0;
  ::waitpid(rank_1, &status, 0);
  EXPECT_EQ(status, 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace lockstep::testing
