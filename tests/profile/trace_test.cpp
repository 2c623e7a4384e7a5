#include "profile/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "comm/waiting.h"
#include "lockstep/error.h"
#include "lockstep/statistics.h"
#include "profile/group_statistics.h"
#include "tests/ranks.h"

namespace lockstep::testing {
namespace {

using detail::Trace;
using Kind = TraceSpan::Kind;

TraceSpan moment(std::int64_t at, Kind kind = Kind::waiting) {
  return {.begin = at, .end = at, .kind = kind};
}

TEST(Trace, KeepsTheNewestSpansAndJoinsWorkThatFollowsUponWork) {
  {
    Trace trace(4);
    for (int i = 0; i < 3; ++i) trace.add(moment(i));
    EXPECT_EQ(trace.spans().size(), 3U);
    EXPECT_EQ(trace.lost(), 0U);
    for (int i = 3; i < 10; ++i) trace.add(moment(i));
    const auto spans = trace.spans();
    ASSERT_EQ(spans.size(), 4U);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(spans[static_cast<std::size_t>(i)].begin, 6 + i);
    EXPECT_EQ(trace.lost(), 6U);
  }
  Trace trace(8);
  for (const auto& [begin, end] : {std::pair(0, 5000), {5100, 9000}, {90000, 95000}})
    trace.add({.begin = begin, .end = end, .kind = Kind::working});
  trace.add(moment(95001));
  trace.add({.begin = 95002, .end = 96000, .kind = Kind::working});
  const auto spans = trace.spans();
  ASSERT_EQ(spans.size(), 4U);
  EXPECT_EQ(spans[0].begin, 0);
  EXPECT_EQ(spans[0].end, 9000);
  EXPECT_EQ(spans[1].begin, 90000);
  EXPECT_EQ(spans[3].begin, 95002);
  // A thread has one trace, which no other thread uses.
  EXPECT_THROW(Trace(0), InvalidArgument);
  EXPECT_THROW(Trace(4), InvalidArgument);
  std::thread([] {
    EXPECT_EQ(detail::this_threads_trace, nullptr);
    const Trace own(1);
  }).join();
  EXPECT_EQ(detail::this_threads_trace, &trace);
}

TEST(Trace, HasEachCollectiveOfEachRank) {
  run_ranks(3, [](std::shared_ptr<Communicator> group) {
    std::vector<float> values(300000, 1);
    detail::GroupStatistics::of(*group);
    const auto all_reduce = [&](int bucket) {
      const SourceScope of_bucket(*group, {.bucket = bucket});
      return group->all_reduce(values.data(), values.size(), DType::f32, ReduceOp::sum);
    };
    all_reduce(0).wait();  // before the trace
    const auto before = detail::trace_clock();
    const auto work_before = detail::work_done();
    {
      Trace trace(1000);
      all_reduce(1).wait();
      all_reduce(2).wait();
      group->barrier().wait();
      const auto after = detail::trace_clock();
      std::vector<TraceSpan> requests;
      std::int64_t worked = 0;
      for (const auto& span : trace.spans()) {
        EXPECT_GE(span.begin, before);
        EXPECT_GE(span.end, span.begin);
        EXPECT_LE(span.end, after);
        if (span.kind == Kind::request) requests.push_back(span);
        if (span.kind == Kind::working) worked += span.end - span.begin;
      }
      ASSERT_EQ(requests.size(), 3U);
      for (const int i : {0, 1}) {
        EXPECT_EQ(requests[static_cast<std::size_t>(i)].bucket, i + 1);
        EXPECT_EQ(requests[static_cast<std::size_t>(i)].bytes, 1200000U);
        EXPECT_EQ(requests[static_cast<std::size_t>(i)].collective, Collective::all_reduce);
      }
      EXPECT_EQ(requests[2].collective, Collective::barrier);
      // Pieces of work that were joined hold what lay between them, too.
      EXPECT_GE(worked, (detail::work_done() - work_before).count());
      EXPECT_GT(worked, 0);
    }
    group->barrier().wait();  // after it
  });
}

/// Rank 1 joins the barrier only a certain time after rank 0 began to wait, by the clock of the
/// test. A rank 0 that is not scheduled meanwhile waits for less, so one try of many must do.
TEST(Trace, WaitingIsCountedForTheThread) {
  using Clock = std::chrono::steady_clock;
  constexpr int tries = 100;
  constexpr auto delay = std::chrono::milliseconds(2);
  std::array<std::atomic<Clock::rep>, tries> begins{};
  run_ranks(2, [&](std::shared_ptr<Communicator> group) {
    const auto& statistics = detail::GroupStatistics::of(*group);
    std::chrono::nanoseconds longest{};
    std::chrono::nanoseconds all{};
    const auto before_all = detail::waited();
    for (auto& begin : begins) {
      auto work = group->barrier();
      const auto now = Clock::now();
      if (group->rank() == 0) {
        begin = now.time_since_epoch().count();
      } else {
        while (begin == 0) std::this_thread::yield();
        const auto until = Clock::time_point(Clock::duration(begin)) + delay;
        while (Clock::now() < until) std::this_thread::yield();
      }
      const auto waited_before = detail::waited();
      const auto call = Clock::now();
      work.wait();
      const auto most = Clock::now() - call;
      const auto waited = detail::waited() - waited_before;
      EXPECT_LE(waited.count(), most.count()) << "no more than the call took";
      longest = std::max(longest, waited);
      all += waited;
    }
    if (group->rank() == 0) {
      EXPECT_GE(longest.count(), std::chrono::nanoseconds(delay).count() / 2);
    }
    EXPECT_EQ((detail::waited() - before_all).count(), all.count()) << "only wait() waits";
    EXPECT_EQ(statistics.rows().at(0).waiting.count(), all.count());
    std::thread([] { EXPECT_EQ(detail::waited().count(), 0) << "another thread"; }).join();
  });
}

}  // namespace
}  // namespace lockstep::testing
