#include "comm/tcp/tcp.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "comm/communicator.h"
#include "comm/tcp/tcp_transport.h"
#include "lockstep/error.h"
#include "tests/matchers.h"
#include "tests/message_of.h"

// Rank 0 of a TcpTransport: what no correct rank sends. The conformance suite and tests/simulation
// exchange messages.

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using tcp::TcpTransport;

/// The bytes of a message with this content in a stream.
std::string message(int tag, std::string_view content) {
  const std::array<std::uint64_t, 2> header{content.size(), static_cast<std::uint64_t>(tag)};
  std::string text(reinterpret_cast<const char*>(header.data()), sizeof header);
  return text.append(content);
}

class TcpTransportTest : public ::testing::Test {
 protected:
  void SetUp() override { connect(1), connect(2); }

  void connect(int rank) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
    of(rank) = detail::Descriptor(ends[1]);
    transport_.connect(rank, detail::Descriptor(ends[0]), {});
  }
  detail::Descriptor& of(int rank) { return others_.at(static_cast<std::size_t>(rank)); }

  /// The bytes arrive at rank 0.
  void arrive(int from, std::string_view bytes) {
    ASSERT_EQ(::send(of(from).get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    transport_.progress();
  }

  /// The error of progress(); an empty text if there is none for 3 s.
  std::string error() {
    return message_of<CommError>([&] {
      for (int i = 0; i < 300; ++i) {
        transport_.progress();
        std::this_thread::sleep_for(10ms);
      }
    });
  }

  TcpTransport transport_{0, 3, 1};
  std::array<detail::Descriptor, 3> others_;
};

/// From now on, epoll_pwait2() fails in this thread, as on Linux before 5.11.
void forbid_epoll_pwait2() {
  std::array<sock_filter, 4> filter{
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_pwait2, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{.len = filter.size(), .filter = filter.data()};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

TEST_F(TcpTransportTest, ASleepLastsOnAnOldKernelToo) {
  std::jthread([this] {
    forbid_epoll_pwait2();
    const auto begin = std::chrono::steady_clock::now();
    transport_.sleep(50ms);
    transport_.sleep(100us);
    EXPECT_GT(std::chrono::steady_clock::now() - begin, 50ms);
  });
}

TEST_F(TcpTransportTest, AnEndInAMessageIsAnErrorThatNamesTheRank) {
  const auto whole = message(7, "content");
  arrive(1, whole + whole.substr(0, 18));
  of(1).reset();
  EXPECT_THAT(error(), AllOf(HasSubstr("the stream of rank 0 to rank 1"), HasSubstr("closed it")));
}

TEST_F(TcpTransportTest, AnEndInAHeaderIsAnErrorAndOneBetweenMessagesIsNone) {
  arrive(1, message(7, "content"));
  arrive(2, message(7, "content").substr(0, 3));
  of(1).reset();
  of(2).reset();
  EXPECT_THAT(error(), HasSubstr("the stream of rank 0 to rank 2"));
}

TEST_F(TcpTransportTest, AMessageLongerThanItsReceiveIsAnError) {
  std::array<std::byte, 4> memory{};
  transport_.receive(memory.data(), memory.size(), 2, 7, [](std::size_t) {});
  EXPECT_THROW(arrive(2, message(7, "longer")), CommError);
}

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
