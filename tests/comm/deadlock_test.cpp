#include <atomic>

#include "comm/host/host.h"
#include "comm/host/host_rank_context.h"
#include "comm/host/world/arena.h"
#include "comm/host/world/world.h"
#include "tests/comm/failures.h"
#include "tests/matchers.h"

// Ranks that wait for one another in different operations. The timeout is longer than a test may
// last.

namespace lockstep::testing {
namespace {

Work sum(Communicator& group) {
  return group.all_reduce(floats + 16 * group.rank(), 8, DType::f32, ReduceOp::sum);
}

TEST(Deadlock, OfTwoGroupsIsNamedOnEveryRankWithItsWrappers) {
  const auto waits = [](const auto& world) {
    const auto other = world->split(0, 0);
    Source source{.owner = Source::Owner::distributed_data_parallel,
                  .content = Source::Content::gradients,
                  .number = 1,
                  .bucket = 3 * world->rank()};
    auto& group = world->rank() == 0 ? *world : *other;
    const SourceScope scope(group, source);
    sum(group).wait();
  };
  expect_errors(
      2,
      HasSubstr("deadlock: rank 0 waits in all_reduce #3 of the world (bucket 0 of the gradients "
                "of DistributedDataParallel #1) for rank 1, rank 1 waits in all_reduce #1 of "
                "group 1 (ranks 0, 1) (bucket 3 of the gradients of DistributedDataParallel #1) "
                "for rank 0; let one of these ranks begin what another one waits for before it "
                "waits itself, and issue the operations of groups that share ranks in the same "
                "order on all of them"),
      waits, 10min);
}

TEST(Deadlock, IsFoundBehindMoreOperationsThanAreAnnounced) {
  const auto waits = [](const auto& world) {
    const auto other = world->split(0, 0);
    auto& group = world->rank() == 0 ? *world : *other;
    std::vector<Work> works;
    for (int i = 0; i < 40; ++i) works.push_back(sum(group));
    for (auto& work : works) work.wait();
  };
  expect_errors(2, HasSubstr("deadlock: rank 0 waits in all_reduce #3 of the world"), waits, 10min);
}

TEST(Deadlock, OfMessagesIsFound) {
  const auto receives = [](const auto& world) { world->recv(floats, 1, DType::f32, 0).wait(); };
  expect_errors(1,
                HasSubstr("deadlock: rank 0 waits in recv #1 from rank 0 of the world for rank 0; "
                          "let one of these ranks begin what another one waits for before it "
                          "waits itself"),
                receives, 10min);
  const auto with_a_collective = [&](const auto& world) {
    if (world->rank() == 0) world->barrier().wait();
    receives(world);
  };
  expect_errors(2,
                HasSubstr("rank 0 waits in barrier #1 of the world for rank 1, rank 1 waits in "
                          "recv #1 from rank 0 of the world for rank 0; let one of these ranks"),
                with_a_collective, 10min);
  const auto from_any_source = [&](const auto& world) {
    if (world->rank() == 0) world->recv(floats, 1, DType::f32, any_source).wait();
    receives(world);
  };
  expect_errors(
      3,
      AllOf(HasSubstr("deadlock: "),
            HasSubstr("rank 0 waits in recv #1 from any rank of the world for ranks 1, 2"),
            HasSubstr("rank 1 waits in recv #1 from rank 0 of the world for rank 0")),
      from_any_source, 10min);
}

TEST(Deadlock, AWaitThatIsOverIsNotPublished) {
  const auto world = host::World::create(1);
  const auto group = host::create(world, 0, {});
  EXPECT_THROW(group->recv(floats, 1, DType::f32, 0).wait(), CommError);
  EXPECT_FALSE(host::live_waits(*world)(0));
}

/// Publishes a wait of a rank until the end of the scope.
struct PublishedWait {
  PublishedWait(host::RankState& of_rank, const host::Waited& waited) : state(of_rank) {
    host::begin_wait(state.wait, waited);
  }
  ~PublishedWait() { host::end_wait(state.wait); }
  PublishedWait(const PublishedWait&) = delete;

  host::RankState& state;
};

/// A world whose ranks do nothing, and what they say that they wait in.
class Waits : public ::testing::Test {
 protected:
  Waits() {
    for (int rank = 0; rank < 3; ++rank) {
      block_.membership(rank).rank.store(rank + 1);
      begin(rank, 1);
    }
  }

  /// The rank has begun the collectives up to that number.
  void begin(int rank, std::uint64_t sequence) {
    block_.membership(rank).issued.store(sequence + 1);
  }
  /// The rank waits in a barrier, or in a message.
  PublishedWait wait(int rank, std::uint64_t sequence) {
    return wait(rank, Collective::barrier, -1, sequence);
  }
  PublishedWait wait(int rank, Collective collective, int peer, std::uint64_t sequence = 1) {
    return {arena_.rank(rank),
            {.group = arena_.offset_of(block_.base()),
             .members = 3,
             .member = rank,
             .collective = collective,
             .peer = peer,
             .sequence = sequence}};
  }
  std::optional<detail::Deadlock> found_by(int rank) const {
    return detail::find_deadlock(host::live_waits(arena_), rank);
  }

  std::shared_ptr<host::World> world_ = host::World::create(3);
  const host::Arena& arena_ = *world_;
  host::Block block_ = arena_.world_block();
};

TEST_F(Waits, OfTheSameRanksAreEqualUntilOneOfThemEnds) {
  begin(0, 2);
  const auto first = wait(0, 2);
  std::unique_ptr<PublishedWait> second(new PublishedWait(wait(1, Collective::recv, 0)));
  const auto found = found_by(0);
  ASSERT_TRUE(found);
  EXPECT_EQ(found, found_by(1));
  EXPECT_EQ(found->rank_at_fault(), 1);
  second.reset();
  second.reset(new PublishedWait(wait(1, Collective::recv, 0)));
  EXPECT_NE(found, found_by(0));
  second.reset();
  EXPECT_FALSE(found_by(0));
}

/// Rank 0 and rank 1 wait for each other in turn, never at the same time.
TEST_F(Waits, ThatFollowEachOtherAreNoDeadlock) {
  begin(0, 2);
  std::atomic<bool> over = false;
  std::thread ranks([&] {
    while (!over) {
      { const auto first = wait(0, 2); }
      { const auto second = wait(1, Collective::recv, 0); }
    }
  });
  int found = 0;
  const auto end = std::chrono::steady_clock::now() + 300ms;
  while (std::chrono::steady_clock::now() < end) {
    for (int i = 0; i < 100; ++i) found += found_by(0) ? 1 : 0;
  }
  over = true;
  ranks.join();
  EXPECT_EQ(found, 0);
}

TEST_F(Waits, ForAnySourceAreNoDeadlockWhileOneRankComputes) {
  const auto any = wait(0, Collective::recv, any_source);
  const auto other = wait(1, Collective::recv, 0);
  EXPECT_FALSE(found_by(0));
  EXPECT_FALSE(found_by(1));
  const auto last = wait(2, Collective::recv, 1);
  EXPECT_TRUE(found_by(0));
  EXPECT_TRUE(found_by(2));
}

TEST_F(Waits, ForAnySourceEndByAMessageThatIsNotTaken) {
  const auto any = wait(0, Collective::recv, any_source);
  const auto other = wait(1, Collective::send, 0);
  const auto last = wait(2, Collective::recv, 1);
  block_.mailbox(1, 0).sends_begun.store(1);
  EXPECT_FALSE(found_by(0));
  EXPECT_FALSE(found_by(2));
  block_.mailbox(1, 0).taken.store(1);
  EXPECT_FALSE(found_by(1)) << "rank 0 has taken the message of rank 1";
}

TEST_F(Waits, OfASendThatFindsNoReceiveAreADeadlock) {
  const auto first = wait(0, Collective::recv, 1);
  const auto other = wait(1, Collective::send, 2);
  const auto last = wait(2, Collective::recv, 0);
  block_.mailbox(1, 2).sends_begun.store(1);
  EXPECT_TRUE(found_by(0));
  block_.mailbox(1, 2).open_recvs.store(1);
  EXPECT_FALSE(found_by(0));
}

}  // namespace
}  // namespace lockstep::testing
