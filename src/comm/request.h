#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/operation.h"
#include "lockstep/types.h"
#include "lockstep/work.h"

namespace lockstep::inline v0_2::detail {

/// The implementation of a Work in a backend: one operation that has begun.
class Request {
 public:
  virtual ~Request() = default;
  /// Whether the operation is complete. Does not advance it. Any thread.
  virtual bool complete() const = 0;
  /// Advances the operation without blocking; true when it is complete.
  /// Throws: the failure of the world.
  virtual bool test() = 0;
  /// Blocks until the operation is complete.
  /// Throws: the failure of the world.
  virtual void wait() = 0;
  /// Ends the world, naming this operation: an exception destroys its Work, so nothing will wait
  /// for it.
  virtual void abandon() noexcept = 0;
  /// Checks that every rank that the operation waits for still runs. Costs one or more system
  /// calls.
  /// Throws: the failure of the world.
  virtual void check() {}
  /// Ends the world if a wait of this length exceeds the timeout of the operation.
  /// Throws: the failure of the world.
  virtual void check_time(std::chrono::nanoseconds /*waited*/) {}
  /// The missing ranks: world ranks that the operation waits for. Of a BackendRequest, under a
  /// CallGuard.
  virtual std::vector<int> missing() const { return {}; }
  /// Text that the error of a wait for the operation ends with, after the ranks; "" for none.
  virtual std::string note() const { return {}; }
  /// The note of the operation that the Work holds; "" if it holds none.
  static std::string note_of(const Work& work) {
    return work.request_ != nullptr ? work.request_->note() : std::string();
  }

  /// Withdraws a receive that no message has matched. Returns whether it did: the operation is then
  /// complete.
  /// Throws: the failure of the world.
  virtual bool cancel() { return false; }
  /// The rank of the group whose message a receive gets; any_source if it is not known, and for
  /// other operations.
  int source() const { return source_.load(std::memory_order_relaxed); }
  void set_source(int rank) { source_.store(rank, std::memory_order_relaxed); }

  /// Called once when the operation has begun, for the flight record.
  virtual void record() noexcept {}

  /// Time in which this rank has reduced and copied data for the operation.
  std::chrono::nanoseconds worked() const { return worked_; }

  /// Reports the begin of the operation to the observer. wait_observed() reports its end.
  void observe(std::shared_ptr<OperationObserver> observer, const ObservedOperation& operation) {
    observer_ = std::move(observer);
    observed_ = operation;
    observer_->began(observed_);
  }
  bool is_observed() const { return observer_ != nullptr; }
  /// Calls wait(), then reports the end of the operation to the observer.
  void wait_observed();

 protected:
  std::chrono::nanoseconds worked_{};
  RequestInterval interval_;

 private:
  std::atomic<int> source_{any_source};  ///< a progress thread may set it
  std::shared_ptr<OperationObserver> observer_;
  ObservedOperation observed_;
};

}  // namespace lockstep::detail
