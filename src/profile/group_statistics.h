#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <utility>

#include "comm/communicator.h"
#include "comm/operation.h"
#include "lockstep/statistics.h"

namespace lockstep::inline v0_2::detail {

/// The statistics of one group on one rank: an observer of its operations. It also adds the
/// operations to the sums of the thread that uses the group, and to that thread's trace.
class GroupStatistics final : public OperationObserver {
 public:
  /// The statistics of the group. The first call makes them the observer of its operations.
  static GroupStatistics& of(Communicator& group);

  void began(ObservedOperation& operation) override;
  void ended(const ObservedOperation& operation, const ObservedEnd& end) noexcept override;

  /// Adds a collective to its row. Also for work in shared memory that replaces a collective.
  CollectiveStatistics& count(Collective collective, int bucket, std::uint64_t bytes);
  /// Adds computing time between a bucket's collectives to the bucket's last row, if any.
  void count_work(int bucket, std::chrono::nanoseconds time);

  /// One row per collective and bucket. Includes collectives that were issued and not waited for,
  /// without their time.
  Statistics rows() const { return {rows_.begin(), rows_.end()}; }

 private:
  friend class DenseBytesScope;

  /// The row of a collective, whose address does not change.
  CollectiveStatistics& row(Collective collective, int bucket);

  std::deque<CollectiveStatistics> rows_;
  CollectiveStatistics* last_ = nullptr;
  std::uint64_t dense_bytes_ = 0;
};

/// During its lifetime, the group's next collective of a bucket counts the given dense bytes.
/// Further collectives count none.
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

/// Total time that this thread has waited for other ranks, in all observed groups.
std::chrono::nanoseconds waited();

}  // namespace lockstep::detail
