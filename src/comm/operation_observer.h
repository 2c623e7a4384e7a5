#pragma once

#include <chrono>
#include <cstdint>

#include "comm/operation.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::detail {

/// The times at which an operation began and was complete. Both are zero without a progress thread.
struct RequestInterval {
  std::chrono::steady_clock::time_point begun{};
  std::chrono::steady_clock::time_point complete{};
};

/// An operation that a group has issued.
struct ObservedOperation {
  Collective collective = Collective::barrier;
  Source source = {};
  std::uint64_t bytes = 0;  ///< of this rank's part, in its wire dtype

  // The observer's own: set by began(), kept until ended().
  void* record = nullptr;
  std::int64_t begun = 0;
};

/// The end of an operation: its wait() has returned.
struct ObservedEnd {
  std::chrono::steady_clock::time_point wait_began;
  std::chrono::steady_clock::time_point wait_ended;
  /// Time during the wait in which the thread reduced and copied, for any operation.
  std::chrono::nanoseconds worked_in_wait;
  std::chrono::nanoseconds worked;  ///< time that this rank reduced and copied for the operation
  RequestInterval interval;
};

/// Receives the begin and end of one group's operations on one rank, in the threads that use the
/// group. An operation that fails, or is never waited for, has no end event.
class OperationObserver {
 public:
  virtual ~OperationObserver() = default;
  virtual void began(ObservedOperation& operation) = 0;
  virtual void ended(const ObservedOperation& operation, const ObservedEnd& end) noexcept = 0;
};

}  // namespace lockstep::detail
