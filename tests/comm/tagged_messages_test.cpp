#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/host/host.h"
#include "comm/host/live_waits.h"
#include "comm/host/world/world.h"
#include "lockstep/error.h"
#include "tests/comm/conformance.h"
#include "tests/comm/failures.h"

// Receives by tag and from any source, and their cancellation.

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

const ProcessBody tagged("tagged messages", [](const auto& group) { check_tags(*group); });

class TaggedMessages : public ::testing::TestWithParam<int> {};

TEST_P(TaggedMessages, OfThreads) {
  run_ranks(GetParam(), [](const auto& group) { check_tags(*group); });
}
TEST_P(TaggedMessages, OfProcesses) { expect_processes(GetParam(), "tagged messages"); }

INSTANTIATE_TEST_SUITE_P(Ranks, TaggedMessages, ::testing::Values(1, 2, 3, 4, 7));

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

TEST(AnySource, TermsThatDifferAreNamedOnBothSides) {
  const auto texts = what_ranks_threw(2, [](const auto& group) {
    if (group->rank() == 0) group->send(floats, 4, DType::f32, 1, 7).wait();
    if (group->rank() == 1) group->recv(floats + 16, 5, DType::f32, any_source, 7).wait();
    group->barrier().wait();
  });
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("from rank 0 to rank 1 differs"),
                                HasSubstr("4 elements of float32 with tag 7"),
                                HasSubstr("5 elements of float32 with tag 7"))));
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

const ProcessBody sender_killed("a sender is killed", [](const auto& group) {
  std::int64_t number = 0;
  if (group->rank() == 1) ::raise(SIGKILL);
  recv_number(*group, number, group->rank() == 0 ? any_source : 0, 0).wait();
});

TEST(AnySource, ASenderThatDiesEndsTheWait) {
  const auto outcomes = run_processes(3, "a sender is killed");
  EXPECT_EQ(outcomes[1].code, SIGKILL);
  EXPECT_THAT(outcomes[0].err, HasSubstr("rank 1 left the world (signal 9) before"));
}

TEST(AnySource, DeadlockOfAllSourcesIsFound) {
  const auto texts = what_ranks_threw(
      3,
      [](const auto& group) {
        std::int64_t number = 0;
        if (group->rank() == 0) recv_number(*group, number, any_source, 0).wait();
        recv_number(*group, number, 0, 4).wait();
      },
      10min);
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("deadlock: "),
                                HasSubstr("rank 0 waits in recv #1 from any rank of the world for "
                                          "ranks 1, 2"),
                                HasSubstr("rank 1 waits in recv #1 from rank 0 of the world for "
                                          "rank 0"))));
}

/// Published waits of three ranks, as the search for deadlocks reads them.
class WaitsForAny : public ::testing::Test {
 protected:
  WaitsForAny() {
    for (int rank = 0; rank < 3; ++rank) block_.membership(rank).rank.store(rank + 1);
  }
  host::PublishedWait wait(int rank, Collective collective, int peer) {
    return {arena_.rank(rank), host::Waited{.group = arena_.offset_of(block_.base()),
                                            .members = 3,
                                            .member = rank,
                                            .collective = collective,
                                            .peer = peer,
                                            .sequence = 1}};
  }

  std::shared_ptr<host::World> world_ = host::World::create(3);
  const host::Arena& arena_ = world_->arena();
  host::Block block_ = arena_.world_block();
};

TEST_F(WaitsForAny, AreNoDeadlockWhileOneRankComputes) {
  const auto any = wait(0, Collective::recv, any_source);
  const auto other = wait(1, Collective::recv, 0);
  EXPECT_FALSE(detail::find_deadlock(host::live_waits(arena_), 0));
  EXPECT_FALSE(detail::find_deadlock(host::live_waits(arena_), 1));
  const auto last = wait(2, Collective::recv, 1);
  EXPECT_TRUE(detail::find_deadlock(host::live_waits(arena_), 0));
  EXPECT_TRUE(detail::find_deadlock(host::live_waits(arena_), 2));
}

TEST_F(WaitsForAny, EndByAMessageThatIsNotTaken) {
  const auto any = wait(0, Collective::recv, any_source);
  const auto other = wait(1, Collective::send, 0);
  const auto last = wait(2, Collective::recv, 1);
  block_.mailbox(1, 0).sends_begun.store(1);
  EXPECT_FALSE(detail::find_deadlock(host::live_waits(arena_), 0));
  EXPECT_FALSE(detail::find_deadlock(host::live_waits(arena_), 2));
  block_.mailbox(1, 0).taken.store(1);
  EXPECT_FALSE(detail::find_deadlock(host::live_waits(arena_), 1))
      << "rank 0 has taken the message of rank 1";
}

TEST_F(WaitsForAny, AreADeadlockIfASendFindsNoReceive) {
  const auto first = wait(0, Collective::recv, 1);
  const auto other = wait(1, Collective::send, 2);
  const auto last = wait(2, Collective::recv, 0);
  block_.mailbox(1, 2).sends_begun.store(1);
  EXPECT_TRUE(detail::find_deadlock(host::live_waits(arena_), 0));
  block_.mailbox(1, 2).open_recvs.store(1);
  EXPECT_FALSE(detail::find_deadlock(host::live_waits(arena_), 0));
}

}  // namespace
}  // namespace lockstep::testing
