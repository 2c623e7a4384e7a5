#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <string_view>

#include "comm/control/failure.h"

namespace lockstep::inline v0_2::detail {

/// The kind of failure that ended a world. The values are part of the layout of a host world's
/// shared memory.
enum class FailureKind {
  error,
  timeout,
  left,  ///< a rank left the world while another waited for it
  mismatch,
  abandoned,  ///< an exception left the scope of an operation
  elsewhere,  ///< detected outside this host's shared memory, such as by MPI
  crashed     ///< a rank's process is about to end by a signal such as SIGSEGV
};

/// The first failure of a world without shared memory, as recorded by one rank. Any thread.
class FailureRecord {
 public:
  /// Records the failure, unless one is recorded. Returns whether it was recorded. of_others:
  /// another rank has sent this failure. It replaces a failure that this rank has found itself.
  bool record(const control::Failure& failure, bool of_others = false) noexcept;
  bool recorded() const noexcept { return recorded_.load(std::memory_order_acquire); }
  bool of_others() const;
  control::Failure failure() const;

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> recorded_{false};
  control::Failure failure_;
  bool of_others_ = false;
};

/// The errors that one rank raises after its world has failed.
class RaisedFailure {
 public:
  /// Throws the failure as CommError or TimeoutError. where is "all_reduce #17 (host) rank 2 of 4".
  /// The text of the first error is the cause. The text of a later error also names the operation
  /// that raised the failure first, and the remedy.
  [[noreturn]] void raise(std::string_view where, const control::Failure& failure);

  /// The program of this rank raises the first error itself, so every following error is a later
  /// one. Any thread.
  void set_raised() noexcept { raised_.store(true, std::memory_order_relaxed); }
  bool raised() const noexcept { return raised_.load(std::memory_order_relaxed); }

 private:
  std::string text(std::string_view where, std::string_view cause);

  std::atomic<bool> raised_{false};
  std::string first_;  ///< first operation; empty if the program raised the error
};

}  // namespace lockstep::detail
