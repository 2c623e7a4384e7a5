#pragma once

#include <chrono>
#include <cstdint>
#include <deque>

#include "comm/source.h"
#include "lockstep/statistics.h"

namespace lockstep::inline v0_2::detail {

/// The rows of one group on one rank.
class Ledger {
 public:
  /// Rows are those of this source's bucket from now on. The next collective stands for dense_bytes
  /// of it, others for nothing.
  void attribute_to(const Source& source, std::uint64_t dense_bytes = 0) {
    source_ = source;
    dense_bytes_ = dense_bytes;
  }
  const Source& source() const { return source_; }
  /// Counts a collective into its row.
  CollectiveStatistics& count(Collective collective, std::uint64_t bytes);
  /// Counts work between a bucket's collectives into its last row, if it has one.
  void count_work(int bucket, std::chrono::nanoseconds time);

  Statistics rows() const { return {rows_.begin(), rows_.end()}; }

 private:
  /// The row of a collective, whose address does not change.
  CollectiveStatistics& row(Collective collective);

  std::deque<CollectiveStatistics> rows_;
  CollectiveStatistics* last_ = nullptr;
  Source source_;
  std::uint64_t dense_bytes_ = 0;
};

/// The time that this thread has spent on reducing and copying, and on waiting, in all groups.
std::chrono::nanoseconds work_done();
std::chrono::nanoseconds waited();
void count_wait(std::chrono::nanoseconds time);
/// Counts a time in which an operation of this thread was under way: from when on nothing has been
/// counted yet.
std::chrono::steady_clock::time_point count_communication(
    std::chrono::steady_clock::time_point begin, std::chrono::steady_clock::time_point end);

/// Counts the time that it lives as work, of one operation and of this thread.
class Working {
 public:
  explicit Working(std::chrono::nanoseconds& of_operation);
  ~Working();
  Working(const Working&) = delete;
  Working& operator=(const Working&) = delete;

 private:
  std::chrono::nanoseconds& of_operation_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace lockstep::detail
