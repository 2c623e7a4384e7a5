#pragma once

#include <chrono>
#include <cstdint>

#include "comm/operation.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::detail {

/// The times at which an operation began and was complete, where a progress thread advances it;
/// else both are zero.
struct RequestInterval {
  std::chrono::steady_clock::time_point begun{};
  std::chrono::steady_clock::time_point complete{};
};

/// An operation that a group has issued, from begin to end.
struct ObservedOperation {
  Collective collective = Collective::barrier;
  Source source = {};
  std::uint64_t bytes = 0;  ///< of this rank's part, in its wire dtype

  // The observer's own: set by began(), kept until ended().
  void* record = nullptr;
  std::int64_t begun = 0;
};

/// The end of an operation: a wait() that returned.
struct ObservedEnd {
  std::chrono::steady_clock::time_point wait_began;
  std::chrono::steady_clock::time_point wait_ended;
  /// Of the wait, the time that the thread reduced and copied, for this operation or others.
  std::chrono::nanoseconds worked_in_wait;
  std::chrono::nanoseconds worked;  ///< time that this rank spent on its share, since the begin
  RequestInterval interval;
};

/// Receives the events of one group's operations on one rank, in the threads that use the group.
/// An operation that fails, or is never waited for, begins and does not end.
class OperationObserver {
 public:
  virtual ~OperationObserver() = default;
  virtual void began(ObservedOperation& operation) = 0;
  virtual void ended(const ObservedOperation& operation, const ObservedEnd& end) noexcept = 0;
};

}  // namespace lockstep::detail
