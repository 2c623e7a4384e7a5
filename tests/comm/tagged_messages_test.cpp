#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/host/deadlock.h"
#include "comm/host/host.h"
#include "comm/host/world.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "tests/comm/failures.h"

// Receives by tag and from any source, and their cancellation.

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using lockstep::detail::concat;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

void require(bool as_expected, const Communicator& group, const std::string& what) {
  if (!as_expected) throw std::runtime_error(concat("rank ", group.rank(), ": ", what));
}

Work send_number(Communicator& group, std::int64_t& number, int to, std::uint32_t tag) {
  return group.send(&number, 1, DType::i64, to, tag);
}
Work recv_number(Communicator& group, std::int64_t& number, int from, std::uint32_t tag) {
  return group.recv(&number, 1, DType::i64, from, tag);
}

/// One message of the random exchange. Receives of the tags 0 and 1 are from any source.
struct Planned {
  int from;
  int to;
  std::uint32_t tag;
  std::size_t count;
  std::int64_t number;  ///< of its pair and tag
};

std::vector<Planned> random_plan(int size) {
  std::mt19937 random(20);
  const auto below = [&](std::size_t n) { return random() % n; };
  constexpr std::size_t counts[] = {0, 1, 3, 20'003};
  std::map<std::tuple<int, int, std::uint32_t>, std::int64_t> numbers;
  std::vector<Planned> plan;
  for (int i = 0; i < 60 * size; ++i) {
    const auto ranks = static_cast<std::size_t>(size);
    const int from = static_cast<int>(below(ranks));
    const int to = static_cast<int>(below(ranks));
    const auto tag = static_cast<std::uint32_t>(below(4));
    const std::size_t count = tag == 0 ? 0 : tag == 1 ? 3 : counts[below(4)];
    plan.push_back({from, to, tag, count, numbers[{from, to, tag}]++});
  }
  return plan;
}

std::vector<std::int64_t> content(const Planned& message) {
  return std::vector<std::int64_t>(message.count,
                                   1000 * (10 * message.from + message.tag) + message.number);
}

/// All receives and sends are outstanding at once. Receives are issued in another order than sends,
/// but in order for each pair and tag.
void check_random_exchange(const std::shared_ptr<Communicator>& group) {
  const int own = group->rank();
  const auto plan = random_plan(group->size());
  std::vector<const Planned*> expected;
  for (const auto& message : plan) {
    if (message.to == own) expected.push_back(&message);
  }
  std::ranges::stable_sort(expected, [&](const auto* a, const auto* b) {
    return std::pair(7 - a->tag, (a->from + own) % 3) < std::pair(7 - b->tag, (b->from + own) % 3);
  });
  std::vector<std::vector<std::int64_t>> sent, received;
  sent.reserve(plan.size());
  received.reserve(expected.size());
  std::vector<Work> sends, recvs;
  const auto begin_sends = [&] {
    for (const auto& message : plan) {
      if (message.from != own) continue;
      sent.push_back(content(message));
      sends.push_back(
          group->send(sent.back().data(), message.count, DType::i64, message.to, message.tag));
    }
  };
  if (own % 2 == 0) begin_sends();
  for (const auto* message : expected) {
    received.emplace_back(message->count, -1);
    recvs.push_back(group->recv(received.back().data(), message->count, DType::i64,
                                message->tag < 2 ? any_source : message->from, message->tag));
  }
  if (own % 2 != 0) begin_sends();

  std::map<std::pair<int, std::uint32_t>, std::int64_t> numbers;
  for (std::size_t i = 0; i < recvs.size(); ++i) {
    recvs[i].wait();
    const auto& planned = *expected[i];
    const int from = recvs[i].source();
    require(planned.tag < 2 || from == planned.from, *group, "source of another rank");
    const auto number = numbers[{from, planned.tag}]++;
    const auto wanted = content({from, own, planned.tag, planned.count, number});
    require(received[i] == wanted, *group,
            concat("receive ", i, " of tag ", planned.tag, " from ", from, " got other data"));
  }
  for (auto& work : sends) work.wait();
  group->barrier().wait();
}

void check_order(const std::shared_ptr<Communicator>& group) {
  const int next = (group->rank() + 1) % group->size();
  const int before = (group->rank() + group->size() - 1) % group->size();
  std::int64_t numbers[] = {3, 7, 30};
  std::int64_t got[] = {-1, -1, -1};
  std::vector<Work> sends;
  sends.push_back(send_number(*group, numbers[0], next, 3));
  sends.push_back(send_number(*group, numbers[1], next, 7));
  sends.push_back(send_number(*group, numbers[2], next, 3));
  recv_number(*group, got[1], any_source, 7).wait();
  const auto pending = group->pending_message(before);
  require(pending && pending->tag == 3 && pending->count == 1, *group, "no pending message");
  recv_number(*group, got[0], before, 3).wait();
  Work last = recv_number(*group, got[2], any_source, 3);
  last.wait();
  require(last.source() == before, *group, "source() after wait()");
  require(std::ranges::equal(got, numbers), *group, "messages of other tags");
  for (auto& work : sends) work.wait();
  group->barrier().wait();
}

/// Rank 0 cancels receives while the others send.
void check_cancel(const std::shared_ptr<Communicator>& group) {
  const int size = group->size();
  std::int64_t untouched = -1;
  if (group->rank() == 0) {
    Work any = recv_number(*group, untouched, any_source, 1);
    Work named = recv_number(*group, untouched, size - 1, 1);
    require(any.cancel() && named.cancel(), *group, "a receive without a message stayed");
    require(!any.pending() && any.source() == any_source, *group, "a cancelled receive is pending");
    require(!Work().cancel(), *group, "an empty Work was cancelled");
  }
  group->barrier().wait();
  constexpr std::int64_t rounds = 100;
  if (group->rank() > 0) {
    for (std::int64_t i = 0; i < rounds; ++i) send_number(*group, i, 0, 1).wait();
    return group->barrier().wait();
  }
  std::vector<std::int64_t> next(static_cast<std::size_t>(size));
  for (std::int64_t left = rounds * (size - 1); left > 0;) {
    std::int64_t number = -1;
    Work received = recv_number(*group, number, any_source, 1);
    if (left % 3 != 0) received.ready();
    if (received.cancel()) {
      require(number == -1, *group, "a cancelled receive has data");
      continue;
    }
    received.wait();
    require(number == next[static_cast<std::size_t>(received.source())]++, *group,
            "a message was lost by cancel()");
    --left;
  }
  require(untouched == -1, *group, "a cancelled receive got data");
  group->barrier().wait();
}

const ProcessBody tagged("tagged messages", [](const auto& group) {
  check_order(group);
  check_random_exchange(group);
  check_cancel(group);
});

class TaggedMessages : public ::testing::TestWithParam<int> {};

TEST_P(TaggedMessages, Order) { run_ranks(GetParam(), check_order); }
TEST_P(TaggedMessages, RandomExchange) { run_ranks(GetParam(), check_random_exchange); }
TEST_P(TaggedMessages, Cancel) { run_ranks(GetParam(), check_cancel); }
TEST_P(TaggedMessages, Processes) { expect_processes(GetParam(), "tagged messages"); }

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
  EXPECT_FALSE(host::find_deadlock(arena_, 0));
  EXPECT_FALSE(host::find_deadlock(arena_, 1));
  const auto last = wait(2, Collective::recv, 1);
  EXPECT_TRUE(host::find_deadlock(arena_, 0));
  EXPECT_TRUE(host::find_deadlock(arena_, 2));
}

TEST_F(WaitsForAny, EndByAMessageThatIsNotTaken) {
  const auto any = wait(0, Collective::recv, any_source);
  const auto other = wait(1, Collective::send, 0);
  const auto last = wait(2, Collective::recv, 1);
  block_.mailbox(1, 0).sends_begun.store(1);
  EXPECT_FALSE(host::find_deadlock(arena_, 0));
  EXPECT_FALSE(host::find_deadlock(arena_, 2));
  block_.mailbox(1, 0).taken.store(1);
  EXPECT_FALSE(host::find_deadlock(arena_, 1)) << "rank 0 has taken the message of rank 1";
}

TEST_F(WaitsForAny, AreADeadlockIfASendFindsNoReceive) {
  const auto first = wait(0, Collective::recv, 1);
  const auto other = wait(1, Collective::send, 2);
  const auto last = wait(2, Collective::recv, 0);
  block_.mailbox(1, 2).sends_begun.store(1);
  EXPECT_TRUE(host::find_deadlock(arena_, 0));
  block_.mailbox(1, 2).open_recvs.store(1);
  EXPECT_FALSE(host::find_deadlock(arena_, 0));
}

}  // namespace
}  // namespace lockstep::testing
