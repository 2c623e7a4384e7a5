#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <utility>
#include <vector>

#include "lockstep/types.h"

namespace lockstep::inline v0_2 {

class Communicator;

namespace detail {
class Request;
}  // namespace detail

/// An operation that has been issued. Do not use its tensors until wait() has returned.
///
/// The destructor of an unfinished Work normally waits as wait() does and discards an error: the
/// error has ended the world, and the group's next call raises it. While an exception unwinds the
/// stack, the destructor does not wait. It ends the world, because other ranks may wait for this
/// one.
class [[nodiscard]] Work {
 public:
  Work() = default;  ///< holds no operation; complete
  explicit Work(std::shared_ptr<detail::Request> request) : request_(std::move(request)) {}
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other) noexcept;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  ~Work() { finish(); }

  /// Blocks until the operation is complete. Afterwards, also after a CommError, pending() is false
  /// and wait() returns at once.
  /// Throws: CommError or TimeoutError naming the operation, its sequence number, the rank and the
  /// missing ranks. InvalidArgument if another thread uses the rank's groups at the same time, and
  /// in a forked child process; the Work then stays pending.
  void wait();

  /// Blocks until the operation is complete, for at most this time. Returns whether it is complete;
  /// wait() then returns at once. The limit does not end the operation, which may be waited for
  /// again.
  /// Throws: as wait(). TimeoutError if the operation's own timeout passes in this call.
  bool wait_for(std::chrono::nanoseconds limit);
  bool wait_until(std::chrono::steady_clock::time_point deadline);

  /// Advances the operation without blocking. Returns whether wait() would return at once.
  /// Throws: as wait().
  bool ready();

  /// Returns whether wait() would return at once, without advancing the operation. For a caller
  /// that computes while a progress thread advances the operation.
  bool complete() const;

  /// Checks that the ranks that the operation waits for still run. For a caller that polls ready().
  /// Throws: CommError if such a rank has left the world or its process has ended.
  void check();
  /// Time in which this rank has reduced and copied data for the operation; 0 after wait().
  std::chrono::nanoseconds worked() const;
  /// World ranks that the operation waits for; empty after wait().
  /// Throws: InvalidArgument as wait().
  std::vector<int> missing() const;

  /// Withdraws a receive that no message has matched. Returns whether it did; its memory then stays
  /// as it is, and pending() is false. A receive that a message has matched, any other operation,
  /// and any operation on a device is not changed: wait for it.
  /// Throws: as wait(), but the Work stays pending.
  bool cancel();
  /// The rank of the group from which a receive got its message, also after wait(). any_source
  /// while a receive from any source is not complete, and for other operations.
  int source() const;

  /// Whether this Work holds an operation. False after wait().
  bool pending() const { return request_ != nullptr; }

 private:
  friend class Communicator;
  friend class detail::Request;
  friend std::optional<std::size_t> wait_any(std::span<Work> works,
                                             std::chrono::steady_clock::time_point deadline,
                                             const std::stop_token& stop);

  void finish() noexcept;

  std::shared_ptr<detail::Request> request_;
  int source_ = any_source;  ///< of the operation that wait() has ended
};

/// Blocks until one of the operations is complete, and returns its index, the lowest if there are
/// several. The Work keeps its operation; its wait() returns at once. nullopt if the deadline
/// passes first, if another thread requests a stop, and if no Work holds an operation.
///
/// All works are of groups of one rank. Works of one world sleep until another rank or the stop
/// wakes them; over MPI, on devices and for works of several worlds, the call polls every 50 µs.
///
///     while (const auto next = wait_any(works)) {
///       works[*next].wait();  // holds no operation any more
///       use(results[*next]);
///     }
///
/// Throws: as Work::wait(). TimeoutError if an operation's own timeout passes in this call.
std::optional<std::size_t> wait_any(
    std::span<Work> works,
    std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max(),
    const std::stop_token& stop = {});

}  // namespace lockstep
