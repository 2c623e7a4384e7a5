#include <stdlib.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "comm/ucx/ucx.h"
#include "lockstep/error.h"
#include "tests/matchers.h"
#include "tests/message_of.h"

// Two ranks over UCX in one process.

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

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
