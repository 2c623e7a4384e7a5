#include "comm/ledger.h"

#include <algorithm>
#include <utility>

#include "comm/trace.h"

namespace lockstep::inline v0_2::detail {
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

}  // namespace lockstep::detail
