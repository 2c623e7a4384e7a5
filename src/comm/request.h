#pragma once

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "comm/operation_observer.h"

namespace lockstep::inline v0_2::detail {

/// The backend's side of a Work: one operation that has begun.
class Request {
 public:
  virtual ~Request() = default;
  /// Advances nothing. Any thread.
  virtual bool complete() const = 0;
  /// Advances without blocking; true once complete. Throws what went wrong.
  virtual bool test() = 0;
  /// Blocks until complete. Throws what went wrong.
  virtual void wait() = 0;
  /// The owner is unwinding and will not wait: ends the world, naming this operation.
  virtual void abandon() noexcept = 0;
  /// Checks that every rank that it waits for still runs; costs a system call or more. Throws what
  /// went wrong.
  virtual void check() {}
  /// World ranks that have not done what this waits for.
  virtual std::vector<int> missing() const { return {}; }

  /// Time that this rank has spent on its share of the operation.
  std::chrono::nanoseconds worked() const { return worked_; }
  const RequestInterval& interval() const { return interval_; }

  /// Reports the begin of the operation to the observer, and its end when a wait_observed()
  /// returns.
  void observe(std::shared_ptr<OperationObserver> observer, const ObservedOperation& operation) {
    observer_ = std::move(observer);
    observed_ = operation;
    observer_->began(observed_);
  }
  bool is_observed() const { return observer_ != nullptr; }
  /// wait(), and the end of the operation for its observer.
  void wait_observed();

 protected:
  std::chrono::nanoseconds worked_{};
  RequestInterval interval_;

 private:
  std::shared_ptr<OperationObserver> observer_;
  ObservedOperation observed_;
};

}  // namespace lockstep::detail
