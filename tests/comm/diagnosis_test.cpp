#include "comm/flight/diagnosis.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "comm/flight/flight_record.h"
#include "comm/flight/flight_recorder.h"
#include "comm/operation.h"
#include "tests/matchers.h"

// Diagnoses of records that the tests write. tests/random_hangs diagnoses worlds.

namespace lockstep::testing {
namespace {

using detail::Diagnosis;
using detail::FlightRecorder;
using detail::ObservedRank;
using Kind = Diagnosis::Kind;
using State = ObservedRank::State;

/// The records of a world whose ranks are all in this process.
class Records {
 public:
  /// ranks: those that have a record.
  Records(int size, const std::vector<int>& ranks) : size_(size) {
    members_.resize(static_cast<std::size_t>(size));
    std::iota(members_.begin(), members_.end(), 0);
    for (const int rank : ranks) {
      recorders_.emplace_back(
          rank, FlightRecorder::create({.backend = "test", .rank = rank, .size = size}));
      of(rank).add_group(members_);
    }
  }

  FlightRecorder& of(int rank) {
    return *std::ranges::find(recorders_, rank, [](const auto& one) { return one.first; })->second;
  }
  std::uint64_t issue(int rank, std::uint64_t sequence,
                      Collective collective = Collective::all_reduce, int peer = -1) {
    return of(rank).issued(0, {.collective = collective, .peer = peer, .sequence = sequence}, peer,
                           0);
  }
  void complete(int rank, std::uint64_t sequence) { of(rank).ended(issue(rank, sequence)); }
  void wait(int rank, std::uint64_t sequence, Collective collective = Collective::all_reduce,
            int peer = -1) {
    of(rank).begin_wait(issue(rank, sequence, collective, peer), true);
  }

  void add_second_group(int rank) { of(rank).add_group(members_); }
  void wait_in_second_group(int rank, std::uint64_t sequence) {
    of(rank).begin_wait(
        of(rank).issued(1, {.collective = Collective::barrier, .sequence = sequence}, -1, 0), true);
  }

  std::vector<ObservedRank> observed() const {
    std::vector<ObservedRank> ranks;
    for (auto& record : detail::read_flight_records()) {
      if (record->file().pid != ::getpid() || record->size() != size_) continue;
      ranks.push_back({.record = record, .state = State::running});
    }
    return ranks;
  }
  Diagnosis diagnose(State state_of_first = State::running, double least = 0) const {
    auto ranks = observed();
    ranks.front().state = state_of_first;
    return detail::diagnose(ranks, least);
  }
  std::optional<detail::Deadlock> deadlock_of(int rank) const {
    return detail::find_deadlock(detail::recorded_waits(observed()), rank);
  }

 private:
  int size_;
  std::vector<int> members_;
  std::vector<std::pair<int, std::shared_ptr<FlightRecorder>>> recorders_;
};

TEST(Diagnosis, NamesTheRankThatHasNotIssuedTheOperation) {
  Records records(3, {0, 1, 2});
  records.complete(2, 1);
  for (const int rank : {0, 1}) {
    records.complete(rank, 1);
    records.wait(rank, 2);
  }
  const auto found = records.diagnose();
  EXPECT_EQ(found.kind, Kind::missing);
  EXPECT_THAT(found.ranks, ElementsAre(2));
  EXPECT_THAT(found.waiting, ElementsAre(0, 1));
  EXPECT_THAT(found.text[0], HasSubstr("the others wait for rank 2: it has made no call of "
                                       "Lockstep for "));
  EXPECT_THAT(found.text[0],
              HasSubstr("its last operation is all_reduce #1 of the world, complete"));
}

/// A stopped rank that waits itself is the cause only if the others lack nothing else.
TEST(Diagnosis, PrefersTheRankThatAStoppedOneWaitsFor) {
  Records records(3, {0, 1, 2});
  records.wait(0, 1);
  records.wait(1, 1);
  EXPECT_THAT(records.diagnose(State::stopped).ranks, ElementsAre(2));
  records.wait(2, 1);
  EXPECT_THAT(records.diagnose(State::stopped).ranks, ElementsAre(0));
}

TEST(Diagnosis, NamesARankWithoutARecord) {
  Records records(3, {0, 2});
  records.wait(0, 1);
  records.wait(2, 1);
  const auto found = records.diagnose();
  EXPECT_EQ(found.kind, Kind::unseen);
  EXPECT_THAT(found.ranks, ElementsAre(1));
  EXPECT_THAT(found.text[0], HasSubstr("run `lockstep status` on its host"));
}

TEST(Diagnosis, TakesTheBackendsWordForRanksOfOtherHosts) {
  Records records(4, {0, 1});
  records.wait(0, 1);
  records.wait(1, 1);
  records.of(0).set_missing(std::vector{3});
  records.of(1).set_missing(std::vector{3});
  EXPECT_THAT(records.diagnose().ranks, ElementsAre(3));
}

/// Each rank has done its step, and waits for the next one of the other.
TEST(Diagnosis, OfRanksThatMissEachOthersDataIsData) {
  Records records(3, {0, 1, 2});
  for (const int rank : {0, 1, 2}) records.wait(rank, 1);
  records.of(0).set_missing(std::vector{1});
  records.of(1).set_missing(std::vector{0});
  records.of(2).set_missing(std::vector{0, 1});
  const auto found = records.diagnose();
  EXPECT_EQ(found.kind, Kind::transit);
  EXPECT_THAT(found.text[0], HasSubstr("no rank is missing"));
}

TEST(Diagnosis, OfAMessageInTransitIsDataThoughItsReceiverTakesAnySource) {
  Records records(2, {0, 1});
  records.wait(0, 1, Collective::send, 1);
  records.wait(1, 1, Collective::recv, -1);
  records.of(1).set_missing(std::vector{0});
  EXPECT_EQ(records.diagnose().kind, Kind::transit);
}

/// Rank 2 may send to rank 0 when the data of its operation with rank 3 have arrived.
TEST(Diagnosis, OfUnlikeCollectivesIsADeadlock) {
  Records records(3, {0, 1, 2});
  records.wait(0, 1);
  for (const int rank : {1, 2}) records.wait(rank, 1, Collective::barrier);
  EXPECT_EQ(records.diagnose().kind, Kind::deadlock);
}

TEST(Diagnosis, OfAReceiveFromAnyRankIsNoDeadlockWhileOneOfThemGoesOn) {
  Records records(4, {0, 1, 2, 3});
  records.wait(0, 1, Collective::recv, -1);
  records.of(0).set_missing(std::vector{1, 2});
  records.wait(1, 1, Collective::recv, 0);
  records.wait(2, 1, Collective::recv, 3);
  records.wait(3, 1, Collective::send, 2);
  EXPECT_EQ(records.diagnose().kind, Kind::transit);
}

TEST(Diagnosis, OfADeadlockIsItsShortestCycle) {
  Records records(4, {0, 1, 2, 3});
  for (const int rank : {0, 1, 3}) records.wait(rank, 2);
  records.complete(2, 1);
  records.wait(2, 1, Collective::recv, 0);
  const auto found = records.diagnose();
  EXPECT_EQ(found.kind, Kind::deadlock);
  EXPECT_THAT(found.ranks, ElementsAre(0, 2));
}

/// Ranks 0 and 1 wait for each other in two groups of the same members.
class RecordedDeadlock : public ::testing::Test {
 protected:
  RecordedDeadlock() {
    for (const int rank : {0, 1}) records_.add_second_group(rank);
    records_.wait(0, 1);
    records_.wait_in_second_group(1, 1);
  }
  Records records_{2, {0, 1}};
};

TEST_F(RecordedDeadlock, IsTheSameForEachOfItsRanks) {
  const auto found = records_.deadlock_of(1);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->text(),
            "deadlock: rank 0 waits in all_reduce #1 of the world for rank 1, rank 1 waits in "
            "barrier #1 of group 2 of ranks 0, 1 for rank 0; let one of these ranks begin what "
            "another one waits for before it waits itself, and issue the operations of groups that "
            "share ranks in the same order on all of them");
  EXPECT_EQ(found->rank_at_fault(), 1);
  EXPECT_EQ(found, records_.deadlock_of(0));
}

TEST_F(RecordedDeadlock, OfLaterWaitsIsAnotherOne) {
  const auto found = records_.deadlock_of(0);
  records_.of(1).end_wait();
  EXPECT_FALSE(records_.deadlock_of(0));
  records_.wait_in_second_group(1, 2);
  EXPECT_NE(found, records_.deadlock_of(0));
}

TEST_F(RecordedDeadlock, IsNoneOfAWaitThatSomethingElseMayEnd) {
  records_.of(1).end_wait();
  records_.of(1).begin_wait(
      records_.of(1).issued(1, {.collective = Collective::barrier, .sequence = 2}, -1, 0), false);
  EXPECT_FALSE(records_.deadlock_of(0));
}

TEST_F(RecordedDeadlock, IsNoneOfAGroupThatTheOtherRankHasLeft) {
  records_.of(0).remove_group(1);
  EXPECT_FALSE(records_.deadlock_of(0));
}

TEST_F(RecordedDeadlock, IsNoneWhileTheOperationIsInTransit) {
  records_.issue(1, 1);
  EXPECT_FALSE(records_.deadlock_of(0));
}

/// Operations of further groups share the last entry.
TEST_F(RecordedDeadlock, IsNoneOfMoreGroupsThanARecordHas) {
  for (std::size_t i = 2; i < detail::FlightFile::most_groups; ++i) records_.add_second_group(0);
  EXPECT_FALSE(records_.deadlock_of(0));
}

/// A message with another tag may have arrived.
TEST(RecordedDeadlockOfMessages, IsNoneIfTheSenderHasSent) {
  Records records(2, {0, 1});
  records.wait(0, 1, Collective::recv, 1);
  records.wait(1, 1, Collective::recv, 0);
  EXPECT_TRUE(records.deadlock_of(0));
  records.of(1).end_wait();
  records.of(1).ended(records.issue(1, 1, Collective::send, 0));
  records.wait(1, 2, Collective::recv, 0);
  EXPECT_FALSE(records.deadlock_of(0));
}

TEST(Diagnosis, DoesNotConsiderShortWaits) {
  Records records(2, {0, 1});
  records.wait(0, 1);
  const auto found = records.diagnose(State::running, 60);
  EXPECT_EQ(found.kind, Kind::none);
  EXPECT_THAT(found.text, IsEmpty());
}

TEST(Diagnosis, OfTimesIsReadable) {
  EXPECT_EQ(detail::duration_text(0.012), "12 ms");
  EXPECT_EQ(detail::duration_text(3.14), "3.1 s");
  EXPECT_EQ(detail::duration_text(300), "5 min");
  EXPECT_EQ(detail::duration_text(9000), "2.5 h");
}

}  // namespace
}  // namespace lockstep::testing
