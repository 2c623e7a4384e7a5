#include "lockstep/comm/host/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/host/host.h"
#include "lockstep/core/error.h"
#include "lockstep/core/text.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using ::testing::HasSubstr;

std::string own_job(const std::string& name) {
  return lockstep::detail::concat(name, " of test ", ::getpid());
}

/// What each call threw, "" if nothing; calls run at once.
std::vector<std::string> what_calls_threw(const std::vector<std::function<void()>>& calls) {
  std::vector<std::string> texts(calls.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        calls[i]();
      } catch (const Error& error) {
        texts[i] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return texts;
}

TEST(Rendezvous, RanksMeetInOneWorld) {
  for (const int size : {2, 7}) {
    std::vector<std::function<void()>> ranks;
    for (int rank = size; rank-- > 0;) {
      ranks.emplace_back([=] {
        const auto group = host::create(host::meet(own_job("meet"), rank, size, 20s), rank, {});
        std::int64_t sum = rank;
        group->all_reduce(&sum, 1, DType::i64, ReduceOp::sum).wait();
        EXPECT_EQ(sum, size * (size - 1) / 2);
      });
    }
    EXPECT_THAT(what_calls_threw(ranks), Each(""));
  }
}

TEST(Rendezvous, OtherNumbersOfRanksAreNamedOnBothSides) {
  const auto texts = what_calls_threw({[] { host::meet(own_job("sizes"), 0, 2, 20s); },
                                       [] { host::meet(own_job("sizes"), 1, 3, 20s); }});
  EXPECT_THAT(texts, Each(HasSubstr("rank 1 expects a world of 3 ranks, rank 0 one of 2")));
}

TEST(Rendezvous, TheSameRankTwiceIsNamed) {
  const auto come = [] { host::meet(own_job("twice"), 1, 3, 2s); };
  const auto texts =
      what_calls_threw({[] { host::meet(own_job("twice"), 0, 3, 20s); }, come, come});
  EXPECT_THAT(texts[0], HasSubstr("two processes say that they are rank 1 of 3"));
}

TEST(Rendezvous, SecondRankZeroIsRefused) {
  const auto make = [] { host::meet(own_job("zero"), 0, 2, 500ms); };
  EXPECT_THAT(
      what_calls_threw({make, make}),
      ::testing::UnorderedElementsAre(HasSubstr("does another process say that it is rank 0"),
                                      HasSubstr("waited 0.5 s for ranks 1")));
}

TEST(Rendezvous, MissingRanksAreNamed) {
  EXPECT_THAT(
      what_calls_threw({[] { host::meet(own_job("late"), 0, 3, 100ms); },
                        [] { host::meet(own_job("later"), 2, 3, 100ms); }}),
      ::testing::ElementsAre(HasSubstr("rank 0 of 3 waited 0.1 s for ranks 1, 2 to call init"),
                             HasSubstr("rank 2 of 3 waited 0.1 s for rank 0 to call init")));
}

/// The abstract address of the world that is being made, as anybody can see it.
std::string visible_address() {
  const std::string key = lockstep::detail::concat("@lockstep-", ::geteuid(), "-");
  for (;;) {
    std::ifstream in("/proc/net/unix");
    for (std::string line; std::getline(in, line);) {
      if (const auto at = line.find(key); at != std::string::npos) return line.substr(at + 1);
    }
    std::this_thread::yield();
  }
}

TEST(Rendezvous, AnotherUserIsNotLetIn) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  std::string got = "an answer";
  const auto stranger = [&] {
    const std::string name = visible_address();
    // Of this thread alone, which glibc's wrapper would not do.
    constexpr long nobody = 65534;
    ASSERT_EQ(::syscall(SYS_setresuid, nobody, nobody, nobody), 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
    const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
    const auto length = offsetof(sockaddr_un, sun_path) + 1 + name.size();
    ASSERT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), static_cast<socklen_t>(length)),
              0);
    char byte = 0;
    if (::recv(fd, &byte, 1, 0) <= 0) got = "nothing";
    ::close(fd);
  };
  std::promise<void> went;
  const auto texts = what_calls_threw({[] { host::meet(own_job("stranger"), 0, 2, 20s); },
                                       [&] {
                                         stranger();
                                         went.set_value();
                                       },
                                       [&] {
                                         went.get_future().wait();
                                         host::meet(own_job("stranger"), 1, 2, 20s);
                                       }});
  EXPECT_THAT(texts, Each(""));
  EXPECT_EQ(got, "nothing");
}

}  // namespace
}  // namespace lockstep::testing
