#pragma once

#include <chrono>
#include <vector>

namespace lockstep::inline v0_2::detail {

/// The times at which an operation began and was complete, where a progress thread advances it;
/// else both are zero.
struct RequestInterval {
  std::chrono::steady_clock::time_point begun{};
  std::chrono::steady_clock::time_point complete{};
};

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

 protected:
  std::chrono::nanoseconds worked_{};
  RequestInterval interval_;
};

}  // namespace lockstep::detail
