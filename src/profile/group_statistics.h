#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <utility>

#include "comm/communicator.h"
#include "comm/operation_observer.h"
#include "lockstep/statistics.h"

namespace lockstep::inline v0_2::detail {

/// The statistics of one group on one rank: an observer of its operations. It also adds the
/// operations to the sums of the thread that uses the group, and to that thread's trace.
class GroupStatistics final : public OperationObserver {
 public:
  /// The statistics that observe the group's operations: from now on, unless they did already.
  static GroupStatistics& of(Communicator& group);

  void began(ObservedOperation& operation) override;
  void ended(const ObservedOperation& operation, const ObservedEnd& end) noexcept override;

  /// Counts a collective, or what a rank does with all ranks' memory in its place, into its row.
  CollectiveStatistics& count(Collective collective, int bucket, std::uint64_t bytes);
  /// Counts work between a bucket's collectives into its last row, if it has one.
  void count_work(int bucket, std::chrono::nanoseconds time);

  /// One row for each collective and bucket so far. A collective that was issued and not waited for
  /// is counted, without its time.
  Statistics rows() const { return {rows_.begin(), rows_.end()}; }

 private:
  friend class DenseBytesScope;

  /// The row of a collective, whose address does not change.
  CollectiveStatistics& row(Collective collective, int bucket);

  std::deque<CollectiveStatistics> rows_;
  CollectiveStatistics* last_ = nullptr;
  std::uint64_t dense_bytes_ = 0;
};

/// While it lives, the group's next collective of a bucket stands for so many bytes of the bucket;
/// others stand for none.
class DenseBytesScope {
 public:
  DenseBytesScope(GroupStatistics& statistics, std::uint64_t bytes) : statistics_(statistics) {
    statistics_.dense_bytes_ = bytes;
  }
  ~DenseBytesScope() { statistics_.dense_bytes_ = 0; }
  DenseBytesScope(const DenseBytesScope&) = delete;
  DenseBytesScope& operator=(const DenseBytesScope&) = delete;

 private:
  GroupStatistics& statistics_;
};

/// The time that this thread has waited for other ranks, in all observed groups.
std::chrono::nanoseconds waited();

}  // namespace lockstep::detail
