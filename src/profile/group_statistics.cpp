#include "profile/group_statistics.h"

#include <algorithm>
#include <iomanip>
#include <memory>
#include <utility>

#include "core/text.h"
#include "lockstep/statistics.h"
#include "profile/trace.h"

namespace lockstep::inline v0_2::detail {
namespace {

using Time = std::chrono::steady_clock::time_point;

thread_local std::chrono::nanoseconds total_wait{};
// Not zero, which is a valid time of the clock.
thread_local auto communicated_until = Time::min();

/// Counts a time in which an operation of this thread was in flight. Operations may overlap:
/// returns the begin of the part that was not counted yet.
Time count_communication(Time begin, Time end) {
  const auto from = std::max(begin, communicated_until);
  communicated_until = std::max(communicated_until, end);
  return from;
}

/// Counts how long an operation was in flight, and how much of that was before the wait.
void count_overlap(CollectiveStatistics& row, const ObservedEnd& end) {
  const bool has_progress_thread = end.interval.complete.time_since_epoch().count() != 0;
  const auto [begun, complete] =
      has_progress_thread ? end.interval : RequestInterval{end.wait_began, end.wait_ended};
  const auto from = count_communication(begun, complete);
  const auto until = std::max(complete, from);
  row.communicating += until - from;
  row.hidden += std::clamp(end.wait_began, from, until) - from;
}

void trace(const ObservedOperation& operation, const ObservedEnd& end) noexcept {
  TraceSpan span{.begin = end.wait_began.time_since_epoch() / std::chrono::nanoseconds(1),
                 .end = end.wait_ended.time_since_epoch() / std::chrono::nanoseconds(1),
                 .bytes = operation.bytes,
                 .bucket = operation.source.bucket,
                 .kind = TraceSpan::Kind::waiting,
                 .collective = operation.collective};
  // A shorter wait was for an operation that was already complete. Units: nanoseconds.
  constexpr std::int64_t min_wait = 1000;
  if (span.end - span.begin >= min_wait) this_threads_trace->add(span);
  span.begin = operation.begun;
  span.kind = TraceSpan::Kind::request;
  this_threads_trace->add(span);
}

}  // namespace

GroupStatistics& GroupStatistics::of(Communicator& group) {
  if (auto* const statistics = dynamic_cast<GroupStatistics*>(group.observer().get())) {
    return *statistics;
  }
  const auto statistics = std::make_shared<GroupStatistics>();
  group.set_observer(statistics);
  return *statistics;
}

CollectiveStatistics& GroupStatistics::row(Collective collective, int bucket) {
  const auto same = [&](const CollectiveStatistics& row) {
    return row.collective == collective && row.bucket == bucket;
  };
  if (last_ != nullptr && same(*last_)) return *last_;
  auto found = std::ranges::find_if(rows_, same);
  if (found == rows_.end()) {
    found = rows_.insert(rows_.end(), {.collective = collective, .bucket = bucket});
  }
  last_ = &*found;
  return *last_;
}

CollectiveStatistics& GroupStatistics::count(Collective collective, int bucket,
                                             std::uint64_t bytes) {
  auto& counted = row(collective, bucket);
  ++counted.count;
  counted.bytes += bytes;
  counted.dense_bytes += bucket < 0 ? bytes : std::exchange(dense_bytes_, 0);
  return counted;
}

void GroupStatistics::count_work(int bucket, std::chrono::nanoseconds time) {
  const auto last = std::find_if(rows_.rbegin(), rows_.rend(),
                                 [&](const auto& row) { return row.bucket == bucket; });
  if (last != rows_.rend()) last->working += time;
}

void GroupStatistics::began(ObservedOperation& operation) {
  operation.record = &count(operation.collective, operation.source.bucket, operation.bytes);
  operation.begun = this_threads_trace != nullptr ? trace_clock() : 0;
}

void GroupStatistics::ended(const ObservedOperation& operation, const ObservedEnd& end) noexcept {
  auto& counted = *static_cast<CollectiveStatistics*>(operation.record);
  const auto waited = end.wait_ended - end.wait_began - end.worked_in_wait;
  counted.waiting += waited;
  counted.working += end.worked;
  total_wait += waited;
  count_overlap(counted, end);
  if (operation.begun != 0 && this_threads_trace != nullptr) trace(operation, end);
}

std::chrono::nanoseconds waited() { return total_wait; }

}  // namespace lockstep::detail

namespace lockstep::inline v0_2 {

namespace {

double milliseconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

}  // namespace

std::string to_text(std::span<const CollectiveStatistics> rows) {
  detail::TextStream out;
  out << std::fixed;
  const auto line = [&](std::string_view what, const CollectiveStatistics& row) {
    out << std::left << std::setw(28) << what << std::right << std::setw(9) << row.count
        << std::setw(11) << std::setprecision(2) << static_cast<double>(row.bytes) / 1e6
        << std::setw(13) << milliseconds(row.working) << std::setw(13) << milliseconds(row.waiting)
        << '\n';
  };
  out << std::left << std::setw(28) << "collective" << std::right << std::setw(9) << "count"
      << std::setw(11) << "MB" << std::setw(13) << "working ms" << std::setw(13) << "waiting ms"
      << '\n';
  CollectiveStatistics sum;
  CollectiveStatistics bucket_sum;
  for (const auto& row : rows) {
    std::string what(name(row.collective));
    if (row.bucket >= 0) what += " of bucket " + std::to_string(row.bucket);
    line(what, row);
    sum.count += row.count;
    sum.bytes += row.bytes;
    if (row.bucket >= 0) {
      bucket_sum.bytes += row.bytes;
      bucket_sum.dense_bytes += row.dense_bytes;
    }
    sum.working += row.working;
    sum.waiting += row.waiting;
    sum.communicating += row.communicating;
    sum.hidden += row.hidden;
  }
  line("all", sum);
  const auto dense = static_cast<double>(bucket_sum.dense_bytes);
  const auto sent = static_cast<double>(bucket_sum.bytes);
  if (dense > 0 && dense != sent) {
    out << "buckets of " << std::setprecision(2) << dense / 1e6 << " MB were sent as " << sent / 1e6
        << " MB: " << std::setprecision(1);
    if (dense > sent) {
      out << "compressed " << dense / sent << " times\n";
    } else {
      out << sent / dense << " times as much\n";
    }
  }
  if (sum.hidden.count() > 0) {
    out << std::setprecision(2) << "communication took " << milliseconds(sum.communicating)
        << " ms, of which " << milliseconds(sum.hidden)
        << " ms overlapped with other work: " << std::setprecision(0)
        << 100 * milliseconds(sum.hidden) / milliseconds(sum.communicating) << " %\n";
  }
  return out.str();
}

}  // namespace lockstep
