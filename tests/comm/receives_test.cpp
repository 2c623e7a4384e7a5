#include <array>
#include <cstdint>
#include <stop_token>

#include "tests/comm/conformance.h"
#include "tests/comm/failures.h"
#include "tests/matchers.h"

// Receives by tag and from any source that fail.

namespace lockstep::testing {
namespace {

TEST(AnySource, IsServedInTurn) {
  run_ranks(3, [](const auto& group) {
    constexpr std::int64_t rounds = 20;
    if (group->rank() > 0) {
      std::vector<Work> sends;
      std::int64_t number = group->rank();
      for (std::int64_t i = 0; i < rounds; ++i) sends.push_back(send_number(*group, number, 0, 0));
      group->barrier().wait();
      for (auto& work : sends) work.wait();
      return;
    }
    group->barrier().wait();
    int of_first = 0;
    for (std::int64_t i = 0; i < 2 * rounds; ++i) {
      std::int64_t number = 0;
      Work received = recv_number(*group, number, any_source, 0);
      received.wait();
      EXPECT_EQ(received.source(), number);
      if (i < rounds && number == 1) ++of_first;
    }
    EXPECT_LT(of_first, rounds) << "rank 1 kept the messages of rank 2 back";
  });
}

TEST(AnySource, TimeoutNamesTheRanksAndTheOtherTags) {
  const auto texts = what_ranks_threw(3, [](const auto& group) {
    std::int64_t number = 0;
    if (group->rank() == 1) send_number(*group, number, 0, 3).wait();
    if (group->rank() == 0) {
      group->recv(&number, 1, DType::i64, any_source, 8, {.timeout = 100ms}).wait();
    }
    group->barrier().wait();
  });
  EXPECT_THAT(texts, Each(HasSubstr("recv #1 from any rank waited 0.1 s for ranks 1, 2, expected "
                                    "tag 8, got tag 3 from rank 1")));
}

TEST(AnySource, ARankThatLeavesDoesNotEndTheWaitForTheOthers) {
  const auto texts = what_ranks_threw(3, [](const auto& group) {
    std::int64_t number = group->rank();
    if (group->rank() == 1) return;  // leaves at once
    if (group->rank() == 2) {
      std::this_thread::sleep_for(100ms);
      return send_number(*group, number, 0, 0).wait();
    }
    recv_number(*group, number, any_source, 0).wait();
    EXPECT_EQ(number, 2);
    recv_number(*group, number, any_source, 0).wait();
  });
  EXPECT_THAT(texts[0], HasSubstr("left the world before recv #2 from any rank"));
  EXPECT_EQ(texts[1] + texts[2], "");
}

// Waits for one of several operations that fail, or that nothing ends.

constexpr auto no_deadline = std::chrono::steady_clock::time_point::max();

/// Receives from every other rank.
std::vector<Work> receives(Communicator& group) {
  std::vector<Work> works;
  for (int from = 0; from < group.size(); ++from) {
    if (from == group.rank()) continue;
    works.push_back(group.recv(floats + 16 * from, 1, DType::f32, from));
  }
  return works;
}

TEST(WaitAny, NamesARankThatLeft) {
  const auto texts = what_ranks_threw(3, [](const auto& group) {
    if (group->rank() == 2) return;
    auto works = receives(*group);
    wait_any(works);
  });
  EXPECT_THAT(texts,
              ElementsAre(HasSubstr("rank 2 left the world before recv #1 from rank 2"),
                          HasSubstr("rank 2 left the world before recv #1 from rank 2"), ""));
}

TEST(WaitAny, RaisesTheTimeoutOfAnOperationOfOneOfSeveralWorlds) {
  const auto texts = what_ranks_threw(2, [](const auto& group) {
    const auto other = group->new_group(std::vector{0, 1});
    if (group->rank() == 0) {
      std::array<Work, 2> works{group->barrier(),
                                other->recv(floats, 1, DType::f32, 1, 0, {.timeout = 50ms})};
      wait_any(works, std::chrono::steady_clock::now() + 5s);
    } else {
      other->barrier().wait();
    }
  });
  EXPECT_THAT(texts[0], AllOf(HasSubstr("recv #1 from rank 1"), HasSubstr("waited 0.05 s")));
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
