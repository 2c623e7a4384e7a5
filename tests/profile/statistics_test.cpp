#include "lockstep/statistics.h"

#include <thread>

#include "comm/backend_communicator.h"
#include "profile/group_statistics.h"
#include "tests/matchers.h"
#include "tests/ranks.h"

namespace lockstep::testing {
namespace {

using detail::DenseBytesScope;
using detail::GroupStatistics;
using std::chrono::nanoseconds;

TEST(Statistics, CountCollectivesAndBytesByBucket) {
  run_ranks(3, [](std::shared_ptr<Communicator> group) {
    std::vector<float> values(100000, 1);
    std::vector<float> input(6, 1), gathered(9), exchanged(6);
    const auto& statistics = GroupStatistics::of(*group);
    EXPECT_ANY_THROW(group->broadcast(values.data(), 1, DType::f32, 5).wait())
        << "which does not count";
    for (int i = 0; i < 2; ++i) {
      const SourceScope of_bucket(*group, {.bucket = i});
      for (int repeat = 0; repeat <= i; ++repeat) {
        group->all_reduce(values.data(), values.size(), DType::f32, ReduceOp::avg).wait();
      }
    }
    group->all_gather(values.data(), gathered.data(), 3, DType::f32).wait();
    group->all_to_all(input.data(), exchanged.data(), 2, DType::f32).wait();
    group->barrier().wait();

    const auto rows = statistics.rows();
    ASSERT_EQ(rows.size(), 5U);
    const auto expect = [&](std::size_t i, Collective collective, int bucket, std::uint64_t count,
                            std::uint64_t bytes) {
      EXPECT_EQ(rows[i].collective, collective);
      EXPECT_EQ(rows[i].bucket, bucket);
      EXPECT_EQ(rows[i].count, count);
      EXPECT_EQ(rows[i].bytes, bytes);
    };
    expect(0, Collective::all_reduce, 0, 1, 400000);
    expect(1, Collective::all_reduce, 1, 2, 800000);
    expect(2, Collective::all_gather, -1, 1, 12);
    expect(3, Collective::all_to_all, -1, 1, 24);
    expect(4, Collective::barrier, -1, 1, 0);
    // Ordinary memory is copied in and out by each rank itself.
    EXPECT_GT(rows[0].working, nanoseconds(0));
    EXPECT_GT(rows[1].working, nanoseconds(0));
    EXPECT_GE(rows[0].waiting, nanoseconds(0));
    // Only a wait makes progress, which hides nothing.
    EXPECT_GT(rows[0].communicating, nanoseconds(0));
    EXPECT_EQ(rows[0].hidden, nanoseconds(0));
  });
}

/// An operation that was under way at these times, in milliseconds from one moment on.
class Past : public detail::Request {
 public:
  Past(int begun, int complete) {
    static const auto start = std::chrono::steady_clock::now() - std::chrono::hours(1);
    interval_ = {.begun = start + std::chrono::milliseconds(begun),
                 .complete = start + std::chrono::milliseconds(complete)};
  }
  bool complete() const override { return true; }
  bool test() override { return true; }
  void wait() override {}
  void abandon() noexcept override {}
};

TEST(Statistics, CountOverlappingCommunicationOnce) {
  // A thread of its own: communication is counted by thread.
  std::thread([] {
    const auto count = [](int begun, int complete) {
      const auto statistics = std::make_shared<GroupStatistics>();
      const auto request = std::make_shared<Past>(begun, complete);
      request->observe(statistics, {});
      Work(request).wait();
      const auto row = statistics->rows().at(0);
      EXPECT_EQ(row.hidden, row.communicating) << "complete before it was waited for";
      return std::chrono::round<std::chrono::milliseconds>(row.communicating).count();
    };
    EXPECT_EQ(count(0, 100), 100);
    EXPECT_EQ(count(50, 300), 200);
    EXPECT_EQ(count(60, 200), 0);
    EXPECT_EQ(count(400, 500), 100);
  }).join();
}

TEST(Statistics, CountFromTheFirstUseOn) {
  run_ranks(2, [](std::shared_ptr<Communicator> group) {
    group->barrier().wait();
    EXPECT_EQ(group->observer(), nullptr);
    auto begun_before = group->barrier();
    const auto& statistics = GroupStatistics::of(*group);
    begun_before.wait();
    EXPECT_TRUE(statistics.rows().empty());
    EXPECT_EQ(&GroupStatistics::of(*group), &statistics);
    auto counted = group->barrier();
    group->set_observer(nullptr);  // the operation keeps its observer
    counted.wait();
    group->barrier().wait();
    EXPECT_TRUE(GroupStatistics::of(*group).rows().empty());
  });
}

TEST(Statistics, SayForWhatCompressedBytesStand) {
  run_ranks(2, [](std::shared_ptr<Communicator> group) {
    std::vector<float> values(10, 1);
    auto& statistics = GroupStatistics::of(*group);
    const auto all_reduce = [&] {
      group->all_reduce(values.data(), 10, ReduceOp::sum, Wire{.dtype = DType::f16}).wait();
    };
    {
      const SourceScope of_bucket(*group, {.bucket = 3});
      const DenseBytesScope stands_for(statistics, 400);
      all_reduce();
      EXPECT_EQ(statistics.rows().at(0).dense_bytes, 400U);
      all_reduce();  // a later collective of the same bucket
    }
    all_reduce();
    const auto rows = statistics.rows();
    ASSERT_EQ(rows.size(), 2U);
    EXPECT_EQ(rows[0].bytes, 40U);
    EXPECT_EQ(rows[0].dense_bytes, 400U);
    EXPECT_EQ(rows[1].dense_bytes, 20U);
  });
}

TEST(Statistics, AreATableWithTheirSumAndThePartThatWasHidden) {
  CollectiveStatistics row{.count = 1};
  row.communicating = std::chrono::milliseconds(200);
  row.hidden = std::chrono::milliseconds(150);
  EXPECT_THAT(
      to_text({&row, 1}),
      HasSubstr(
          "communication took 200.00 ms, of which 150.00 ms overlapped with other work: 75 %\n"));
  const Statistics rows{{.collective = Collective::all_reduce,
                         .bucket = 7,
                         .count = 3,
                         .bytes = 2'500'000,
                         .waiting = std::chrono::microseconds(1500),
                         .working = std::chrono::microseconds(250)},
                        {.collective = Collective::barrier, .count = 4}};
  const auto text = to_text(rows);
  EXPECT_THAT(text, Not(HasSubstr("overlapped")));
  EXPECT_THAT(text, ContainsRegex("all_reduce of bucket 7 +3 +2\\.50 +0\\.25 +1\\.50\n"));
  EXPECT_THAT(text, ContainsRegex("barrier +4 +0\\.00 +0\\.00 +0\\.00\n"));
  EXPECT_THAT(text, ContainsRegex("\nall +7 +2\\.50 +0\\.25 +1\\.50\n$"));
}

}  // namespace
}  // namespace lockstep::testing
