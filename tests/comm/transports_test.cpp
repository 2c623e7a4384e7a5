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
#include <cstdlib>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>

#include "comm/tcp/tcp.h"
#include "comm/tcp/tcp_transport.h"
#include "comm/ucx/ucx.h"
#include "tests/matchers.h"
#include "tests/message_of.h"

// Rank 0 of a TcpTransport: what no correct rank sends. The conformance suite and tests/simulation
// exchange messages.

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using tcp::TcpTransport;

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

TEST(TcpTransportTest, ASleepLastsOnAnOldKernelToo) {
  std::jthread([] {
    forbid_epoll_pwait2();
    TcpTransport transport(0, 2, 1);
    const auto begin = std::chrono::steady_clock::now();
    transport.sleep(50ms);
    transport.sleep(100us);
    EXPECT_GT(std::chrono::steady_clock::now() - begin, 50ms);
  });
}

/// Connects rank 0 with another, which sends so many bytes of a message of 22 bytes. Returns the
/// other's end.
detail::Descriptor receive_from(TcpTransport& transport, int rank, ssize_t bytes) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
  transport.connect(rank, detail::Descriptor(ends[0]), {});
  const std::uint64_t message[] = {6, 7, 0};  // the length, the tag, and six bytes of these
  EXPECT_EQ(::send(ends[1], message, static_cast<std::size_t>(bytes), MSG_NOSIGNAL), bytes);
  return detail::Descriptor(ends[1]);
}

TEST(TcpTransportTest, AMessageLongerThanItsReceiveIsAnError) {
  TcpTransport transport(0, 2, 1);
  std::byte memory[4];
  transport.receive(memory, sizeof memory, 1, 7, [](std::size_t) {});
  const auto other = receive_from(transport, 1, 22);
  EXPECT_THROW(transport.progress(), CommError);
}

TEST(TcpTransportTest, AnEndInAMessageIsAnErrorThatNamesTheRankAndOneBetweenMessagesIsNone) {
  TcpTransport in_header(0, 3, 1), in_content(0, 3, 1);
  for (auto* one : {&in_header, &in_content}) {
    receive_from(*one, 1, 22).reset();
    receive_from(*one, 2, one == &in_header ? 3 : 18).reset();
  }
  std::array<std::string, 2> errors;
  for (int i = 0; i < 300 && (errors[0].empty() || errors[1].empty()); ++i) {
    if (errors[0].empty()) errors[0] = message_of<CommError>([&] { in_header.progress(); });
    if (errors[1].empty()) errors[1] = message_of<CommError>([&] { in_content.progress(); });
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("tcp: the stream of rank 0 to rank 2 at "),
                                 HasSubstr(" ended: the other side closed it"))));
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

// Two ranks over UCX.

class UcxTransportTest : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef __SANITIZE_ADDRESS__
    if (std::getenv("ASAN_OPTIONS") == nullptr ||
        std::string_view(std::getenv("ASAN_OPTIONS")).find("detect_leaks=0") == std::string::npos)
      GTEST_SKIP() << "the leak checker crashes where UCX was loaded";
#endif
    if (!ucx::available().empty()) GTEST_SKIP() << ucx::available();
    for (const int rank : {0, 1}) ranks_.at(static_cast<std::size_t>(rank)) = ucx::create(rank, 2);
    for (auto& one : ranks_) {
      one->connect(0, ranks_[0]->address());
      one->connect(1, ranks_[1]->address());
    }
  }

  void progress(std::chrono::milliseconds time) {
    for (const auto until = std::chrono::steady_clock::now() + time;
         std::chrono::steady_clock::now() < until;) {
      for (auto& one : ranks_) {
        if (one) one->progress();
      }
    }
  }

  /// The received bytes of a message from rank 0 to 1, or to itself, received so much later.
  std::string exchange(const std::string& content, std::chrono::milliseconds later, int to = 1) {
    ranks_[0]->send(reinterpret_cast<const std::byte*>(content.data()), content.size(), to, 3, {});
    progress(later);
    std::string memory(content.size(), '\0');
    std::optional<std::size_t> got;
    ranks_.at(static_cast<std::size_t>(to))
        ->receive(reinterpret_cast<std::byte*>(memory.data()), memory.size(), 0, 3,
                  [&](std::size_t bytes) { got = bytes; });
    for (int i = 0; i < 500 && !got; ++i) progress(10ms);
    return memory.substr(0, got.value_or(0));
  }

  void expect_whole() {
    for (const std::size_t bytes : {1u, 5'000u, 9'000u, 65'536u, 1u << 20}) {
      std::string content(bytes, 'a');
      for (std::size_t i = 0; i < bytes; ++i) content[i] = static_cast<char>(i * 7);
      for (const auto later : {0ms, 50ms}) {
        EXPECT_TRUE(exchange(content, later) == content) << bytes << " bytes";
        EXPECT_TRUE(exchange(content, later, 0) == content) << bytes << " bytes to itself";
      }
    }
  }

  std::array<std::unique_ptr<ucx::Ucx>, 2> ranks_;
};

TEST_F(UcxTransportTest, MessagesThatArriveBeforeTheirReceiveAreWhole) { expect_whole(); }

/// Messages of several fragments, which UCX ends within the call that receives them.
class UcxInFragments : public UcxTransportTest {
 protected:
  UcxInFragments() { ::setenv("UCX_RNDV_THRESH", "inf", 1); }
  ~UcxInFragments() override { ::unsetenv("UCX_RNDV_THRESH"); }
};

TEST_F(UcxInFragments, MessagesThatArriveBeforeTheirReceiveAreWhole) { expect_whole(); }

TEST_F(UcxTransportTest, ARankThatIsGoneIsNamedIfAMessageWaitsForIt) {
  EXPECT_EQ(exchange("first", 0ms), "first");
  ranks_[0]->abandon();
  ranks_[0].reset();
  progress(2500ms);  // no message waits: no error
  std::byte memory[8];
  ranks_[1]->receive(memory, sizeof memory, 0, 3, {});
  EXPECT_THAT(message_of<CommError>([&] { progress(100ms); }),
              HasSubstr("ucx: rank 1 and rank 0 cannot exchange messages: "));
}

TEST_F(UcxTransportTest, NothingHappensAfterStop) {
  std::byte memory[8];
  bool received = false;
  ranks_[1]->receive(memory, sizeof memory, 0, 3, [&](std::size_t) { received = true; });
  ranks_[1]->stop();
  ranks_[1]->connect(0, ranks_[0]->address());
  ranks_[1]->send(memory, sizeof memory, 0, 3, {});
  EXPECT_FALSE(ranks_[1]->progress());
  EXPECT_FALSE(received);
}

}  // namespace
}  // namespace lockstep::testing
