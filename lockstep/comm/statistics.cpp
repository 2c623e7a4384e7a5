#include "lockstep/comm/statistics.h"

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <utility>

#include "lockstep/comm/trace.h"

namespace lockstep {
namespace {

double milliseconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

}  // namespace

std::string to_text(std::span<const CollectiveStatistics> rows) {
  std::ostringstream out;
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
  CollectiveStatistics of_buckets;
  for (const auto& row : rows) {
    std::string what(name(row.collective));
    if (row.bucket >= 0) what += " of bucket " + std::to_string(row.bucket);
    line(what, row);
    sum.count += row.count;
    sum.bytes += row.bytes;
    if (row.bucket >= 0) {
      of_buckets.bytes += row.bytes;
      of_buckets.dense_bytes += row.dense_bytes;
    }
    sum.working += row.working;
    sum.waiting += row.waiting;
    sum.communicating += row.communicating;
    sum.hidden += row.hidden;
  }
  line("all", sum);
  const auto dense = static_cast<double>(of_buckets.dense_bytes);
  const auto sent = static_cast<double>(of_buckets.bytes);
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
    out << std::setprecision(2) << "of " << milliseconds(sum.communicating)
        << " ms of communication " << milliseconds(sum.hidden)
        << " ms were hidden: " << std::setprecision(0)
        << 100 * milliseconds(sum.hidden) / milliseconds(sum.communicating) << " %\n";
  }
  return out.str();
}

namespace detail {
namespace {

thread_local std::chrono::nanoseconds done{};
thread_local std::chrono::nanoseconds idle{};
// Nothing yet: not the clock's zero, which is when the machine was started.
thread_local auto communicated_until = std::chrono::steady_clock::time_point::min();

}  // namespace

CollectiveStatistics& Ledger::row(Collective collective) {
  const auto same = [&](const CollectiveStatistics& row) {
    return row.collective == collective && row.bucket == source_.bucket;
  };
  if (last_ != nullptr && same(*last_)) return *last_;
  auto found = std::ranges::find_if(rows_, same);
  if (found == rows_.end()) {
    found = rows_.insert(rows_.end(), {.collective = collective, .bucket = source_.bucket});
  }
  last_ = &*found;
  return *last_;
}

CollectiveStatistics& Ledger::count(Collective collective, std::uint64_t bytes) {
  auto& counted = row(collective);
  ++counted.count;
  counted.bytes += bytes;
  counted.dense_bytes += source_.bucket < 0 ? bytes : std::exchange(dense_bytes_, 0);
  return counted;
}

void Ledger::count_work(int bucket, std::chrono::nanoseconds time) {
  const auto last = std::find_if(rows_.rbegin(), rows_.rend(),
                                 [&](const auto& row) { return row.bucket == bucket; });
  if (last != rows_.rend()) last->working += time;
}

std::chrono::nanoseconds work_done() { return done; }
std::chrono::nanoseconds waited() { return idle; }
void count_wait(std::chrono::nanoseconds time) { idle += time; }

std::chrono::steady_clock::time_point count_communication(
    std::chrono::steady_clock::time_point begin, std::chrono::steady_clock::time_point end) {
  const auto from = std::max(begin, communicated_until);
  communicated_until = std::max(communicated_until, end);
  return from;
}

Working::Working(std::chrono::nanoseconds& of_operation)
    : of_operation_(of_operation), begin_(std::chrono::steady_clock::now()) {}

Working::~Working() {
  const auto now = std::chrono::steady_clock::now();
  of_operation_ += now - begin_;
  done += now - begin_;
  if (this_threads_trace == nullptr) return;
  this_threads_trace->add({.begin = begin_.time_since_epoch() / std::chrono::nanoseconds(1),
                           .end = now.time_since_epoch() / std::chrono::nanoseconds(1)});
}

}  // namespace detail
}  // namespace lockstep
