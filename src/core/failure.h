#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>

namespace lockstep::inline v0_2::detail {

/// Why a world ended. Ranks, hosts and the launcher exchange it: of a world, only the first failure
/// counts.
struct Failure {
  /// The values are part of a host world's shared memory and of messages between hosts.
  enum class Kind : std::int32_t {
    error,      ///< an exception of a rank's program
    timeout,    ///< a rank was waited for too long
    left,       ///< a rank left the world, or its process ended, while another waited for it
    mismatch,   ///< ranks called different operations, or wait for one another
    abandoned,  ///< an exception of a rank's program left the scope of an operation
    elsewhere,  ///< detected by MPI, a link or a device
    crashed     ///< a rank's process is about to end by a signal such as SIGSEGV
  };

  Kind kind = Kind::elsewhere;
  int rank = -1;  ///< the rank at fault, or -1: a world rank, in a host::World a rank of that world
  std::string text = {};

  bool timeout() const { return kind == Kind::timeout; }
  /// Whether the cause is an exception of a rank's program.
  bool by_program() const { return kind == Kind::error || kind == Kind::abandoned; }

  /// The same with another text; with a short one if there is no memory for it.
  Failure with(std::string_view other) const noexcept;
};

/// The kind of this value, or elsewhere if there is none: for messages of others.
Failure::Kind failure_kind(std::int32_t value);

/// Converts an exception to a failure of the world; a TimeoutError becomes a timeout.
Failure failure_of(const std::exception& error);

/// Throws the failure as a TimeoutError or a CommError.
[[noreturn]] void raise(const Failure& failure);

/// The first failure of a world without shared memory, as recorded by one rank. Any thread.
class FailureRecord {
 public:
  /// Records the failure, unless one is recorded. Returns whether it was recorded. is_agreed:
  /// all ranks have this failure. It replaces one that this rank has found itself.
  bool record(const Failure& failure, bool is_agreed = false) noexcept;
  bool recorded() const noexcept { return recorded_.load(std::memory_order_acquire); }
  bool is_agreed() const;
  Failure failure() const;

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> recorded_{false};
  Failure failure_;
  bool is_agreed_ = false;
};

/// The errors that one rank raises after its world has failed.
class RaisedFailure {
 public:
  /// Throws the failure as CommError or TimeoutError. where is "all_reduce #17 (host) rank 2 of 4".
  /// The text of the first error is the cause. The text of a later error also names the operation
  /// that raised the failure first, and the remedy.
  [[noreturn]] void raise(std::string_view where, const Failure& failure);

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
