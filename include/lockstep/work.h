#pragma once

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

namespace lockstep::inline v0_2 {

class Communicator;

namespace detail {
class Request;
}  // namespace detail

/// A collective that has been issued. The buffers belong to it until wait() returns.
///
/// The destructor of an unfinished Work does one of two things. Normally it waits as wait() does;
/// an error has ended the world, and the group's next call raises it. While an exception unwinds
/// the stack it does not wait and ends the world, because other ranks may wait for this one.
class [[nodiscard]] Work {
 public:
  Work() = default;  ///< nothing in flight: complete
  explicit Work(std::shared_ptr<detail::Request> request) : request_(std::move(request)) {}
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other) noexcept;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  ~Work() { finish(); }

  /// Blocks until the result is there. Afterwards, and after an error of the world, pending() is
  /// false and wait() returns at once.
  /// Throws: CommError or TimeoutError naming operation, sequence number, rank and missing ranks.
  /// InvalidArgument when another thread uses the rank's groups at the same time, and in a child
  /// that was forked off; the Work stays pending.
  void wait();

  /// Advances what can be advanced and says whether wait() would return at once. Throws: as wait().
  bool ready();

  /// The same, but advances nothing. For a caller that computes meanwhile while a thread makes
  /// progress.
  bool complete() const;

  /// For a caller that polls ready(). Throws: CommError when a rank that the operation waits for
  /// has left the world or has ended.
  void check();
  /// Time that this rank has spent on its share so far; 0 once waited for.
  std::chrono::nanoseconds worked() const;
  /// World ranks that it waits for; none once waited for.
  std::vector<int> missing() const;

  /// False once waited for, or if there was never anything to wait for.
  bool pending() const { return request_ != nullptr; }

 private:
  friend class Communicator;

  void finish() noexcept;

  std::shared_ptr<detail::Request> request_;
};

}  // namespace lockstep
