#include "comm/tcp/tcp_transport.h"

#include <gmock/gmock.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/error.h"

// Rank 0 of a TcpTransport. The tests write the streams of the other ranks.

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using tcp::TcpTransport;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// The bytes of a message with this content in a stream.
std::string message(int tag, std::string_view content) {
  const std::array<std::uint64_t, 2> header{content.size(), static_cast<std::uint64_t>(tag)};
  std::string text(reinterpret_cast<const char*>(header.data()), sizeof header);
  return text.append(content);
}

using Texts = std::vector<std::string>;

class TcpTransportTest : public ::testing::Test {
 protected:
  void SetUp() override { connect(1), connect(2); }

  void connect(int rank, std::string_view received = {}) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
    of(rank) = detail::Descriptor(ends[1]);
    transport_.connect(rank, detail::Descriptor(ends[0]), received);
  }
  detail::Descriptor& of(int rank) { return others_.at(static_cast<std::size_t>(rank)); }

  /// The bytes arrive at rank 0.
  void arrive(int from, std::string_view bytes) {
    ASSERT_EQ(::send(of(from).get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    transport_.progress();
  }

  void send(std::string_view content, int to, int tag) {
    transport_.send(reinterpret_cast<const std::byte*>(content.data()), content.size(), to, tag,
                    [this](std::size_t) { ++sends_; });
  }

  /// A receive, whose content is added to received_ when it is complete.
  void receive(int from, int tag, std::size_t bytes = 16) {
    auto& memory = memory_.emplace_back(bytes, '\0');
    transport_.receive(
        reinterpret_cast<std::byte*>(memory.data()), bytes, from, tag,
        [this, &memory](std::size_t got) { received_.push_back(memory.substr(0, got)); });
  }

  Texts received() {
    transport_.progress();
    return std::exchange(received_, {});
  }

  /// The error of progress(); an empty text if there is none for 3 s.
  std::string error() {
    try {
      for (int i = 0; i < 300; ++i) {
        transport_.progress();
        std::this_thread::sleep_for(10ms);
      }
    } catch (const CommError& error) {
      return error.what();
    }
    return {};
  }

  TcpTransport transport_{0, 3, 1};
  std::array<detail::Descriptor, 3> others_;
  std::list<std::string> memory_;
  Texts received_;
  int sends_ = 0;
};

TEST_F(TcpTransportTest, MessagesOfATagArriveInOrder) {
  receive(1, 7);
  arrive(1, message(7, "first") + message(8, "other") + message(7, "second"));
  receive(1, 7);
  EXPECT_EQ(received(), (Texts{"first", "second"}));
  arrive(2, message(8, "of 2"));
  receive(2, 8);
  receive(1, 8);
  EXPECT_EQ(received(), (Texts{"of 2", "other"}));
}

TEST_F(TcpTransportTest, AReceiveTakesAMessageOfWhichAPartIsHere) {
  const auto whole = message(7, "content");
  arrive(1, whole.substr(0, 5));
  arrive(1, whole.substr(5, 14));
  receive(1, 7);
  receive(1, 7);
  EXPECT_EQ(received(), Texts{});
  arrive(1, whole.substr(19) + message(7, "next").substr(0, 18));
  EXPECT_EQ(received(), Texts{"content"});
  arrive(1, "xt");
  EXPECT_EQ(received(), Texts{"next"});
}

TEST_F(TcpTransportTest, BytesThatCameBeforeTheStreamAreTheFirst) {
  const auto whole = message(7, "content");
  connect(1, whole.substr(0, 20));
  receive(1, 7);
  arrive(1, whole.substr(20));
  EXPECT_EQ(received(), Texts{"content"});
}

TEST_F(TcpTransportTest, ARankSendsToItself) {
  send("early", 0, 7);
  receive(0, 7);
  receive(0, 7);
  send("late", 0, 7);
  EXPECT_EQ(received(), (Texts{"early", "late"}));
  EXPECT_EQ(sends_, 2);
}

TEST_F(TcpTransportTest, AReceiveFromAnyoneTakesEveryRanksMessages) {
  receive(TcpTransport::anyone, 0);
  arrive(2, message(0, "of 2"));
  arrive(1, message(0, "of 1"));
  receive(TcpTransport::anyone, 0);
  EXPECT_EQ(received(), (Texts{"of 2", "of 1"}));
}

TEST_F(TcpTransportTest, OneReadTakesManyMessages) {
  std::string bytes;
  Texts expected;
  for (int i = 0; i < 1000; ++i) {
    expected.push_back(std::to_string(i));
    bytes += message(i % 7, expected.back());
    receive(1, i % 7);
  }
  arrive(1, bytes);
  EXPECT_EQ(received(), expected);
}

TEST_F(TcpTransportTest, AFullSocketTakesALongMessageLater) {
  std::string content(120 << 20, '\0');
  std::iota(content.begin(), content.end(), '\0');
  send(content, 1, 7);
  send("behind it", 1, 8);
  send("of another rank", 2, 7);
  transport_.progress();
  EXPECT_EQ(sends_, 1) << "the message to rank 2";
  TcpTransport other(1, 2, 1);
  other.connect(0, std::move(of(1)), {});
  std::string got(content.size(), '\0');
  int receives = 0;
  other.receive(reinterpret_cast<std::byte*>(got.data()), got.size(), 0, 7,
                [&](std::size_t) { ++receives; });
  std::array<std::byte, 9> behind{};
  other.receive(behind.data(), behind.size(), 0, 8, [&](std::size_t) { ++receives; });
  for (bool busy = true; busy;) busy = transport_.progress() + other.progress() > 0;
  EXPECT_EQ(receives, 2);
  EXPECT_EQ(sends_, 3);
  EXPECT_TRUE(got == content);
  EXPECT_EQ(std::memcmp(behind.data(), "behind it", behind.size()), 0);
}

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
  receive(2, 7, 4);
  EXPECT_THROW(arrive(2, message(7, "longer")), CommError);
}

}  // namespace
}  // namespace lockstep::testing
