#include <array>
#include <stop_token>
#include <thread>

#include "comm/communicator.h"
#include "tests/comm/failures.h"
#include "tests/matchers.h"

// Waits for one of several operations that fail, or that nothing ends.

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

constexpr auto no_deadline = std::chrono::steady_clock::time_point::max();

/// Receives from every other rank.
std::vector<Work> receives(Communicator& group, std::chrono::milliseconds limit = {}) {
  std::vector<Work> works;
  for (int from = 0; from < group.size(); ++from) {
    if (from == group.rank()) continue;
    works.push_back(group.recv(floats + 16 * from, 1, DType::f32, from, 0, {.timeout = limit}));
  }
  return works;
}

TEST(WaitAny, NamesARankThatLeft) {
  const auto texts = what_ranks_threw(3, [](const auto& group) {
    if (group->rank() == 2) return;
    auto works = receives(*group);
    wait_any(works);
  });
  EXPECT_THAT(texts[0], HasSubstr("rank 2 left the world before recv #1 from rank 2"));
  EXPECT_THAT(texts[1], HasSubstr("rank 2 left the world before recv #1 from rank 2"));
}

TEST(WaitAny, RaisesTheTimeoutOfAnOperation) {
  const auto texts = what_ranks_threw(2, [](const auto& group) {
    if (group->rank() == 0) {
      auto works = receives(*group, 50ms);
      wait_any(works);
    }
    group->barrier().wait();
  });
  EXPECT_THAT(texts[0], AllOf(HasSubstr("recv #1 from rank 1"), HasSubstr("waited 0.05 s")));
}

TEST(WaitAny, EndsAtItsDeadlineAndLeavesTheWorldUsable) {
  run_ranks(2, [](const auto& group) {
    auto works = receives(*group);
    EXPECT_FALSE(wait_any(works, std::chrono::steady_clock::now() + 5ms));
    group->barrier().wait();
    auto sent = group->send(floats + 64 + 16 * group->rank(), 1, DType::f32, 1 - group->rank());
    EXPECT_EQ(wait_any(works, std::chrono::steady_clock::now() + 20s), 0u);
    works[0].wait();
    sent.wait();
  });
}

// The rank sleeps when the stop is requested, or is about to.
TEST(WaitAny, WakesARankThatSleeps) {
  run_ranks(2, [](const auto& group) {
    auto works = receives(*group);
    for (int i = 0; i < 50; ++i) {
      std::stop_source source;
      const std::jthread other([&source, i] {
        std::this_thread::sleep_for(std::chrono::microseconds(40 * i));
        source.request_stop();
      });
      EXPECT_FALSE(wait_any(works, no_deadline, source.get_token()));
    }
    group->barrier().wait();
    auto sent = group->send(floats + 64 + 16 * group->rank(), 1, DType::f32, 1 - group->rank());
    works[0].wait();
    sent.wait();
  });
}

TEST(WaitAny, OfGroupsOfOneWorld) {
  run_ranks(4, [](const auto& group) {
    const auto half = group->split(group->rank() % 2, 0);
    std::array<Work, 2> works{group->barrier(), half->barrier()};
    for (int i = 0; i < 2; ++i) {
      const auto index = wait_any(works);
      ASSERT_TRUE(index);
      works[*index].wait();
    }
    EXPECT_FALSE(wait_any(works));
  });
}

}  // namespace
}  // namespace lockstep::testing
