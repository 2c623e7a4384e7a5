#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

/// The error by which a rank's program ended, for the other ranks and the report of `lockstep run`.
struct ErrorRecord {
  ErrorKind kind = ErrorKind::general;
  int rank = -1;         ///< Error::rank()
  bool repeats = false;  ///< whether Error::cause() is not empty
  /// Whether it was written when the error was raised. The program may have caught the error and
  /// gone on, so it counts only if the rank's stderr shows it.
  bool raised = false;
  std::string text = {};
  std::string operation = {};  ///< Error::operation()

  /// Whether it is a failure of the world, which another rank may have caused.
  bool of_world() const { return kind == ErrorKind::communication || kind == ErrorKind::timeout; }
  /// Whether it is the error of the rank `rank`, which all ranks raise.
  bool is_of_rank() const { return repeats && !of_world() && rank >= 0; }
};

/// The text of an error without the backtrace that LibTorch appends to what(). The rank that raised
/// the error prints the backtrace; other ranks and the launcher report the rest. Never empty: where
/// ranks exchange texts, an empty one stands for no error.
std::string_view without_backtrace(std::string_view text) noexcept;

/// The text of the exception that the caller handles, which need not be a std::exception, without
/// its backtrace.
std::string current_error_text();

/// The record of an error, without its backtrace.
ErrorRecord record_of(const std::exception& error);

/// The record of one rank in memory that the ranks and the launcher share; zeros if it has none.
class ErrorSlot {
 public:
  /// Replaces the record. Truncates a text of more than 4000 bytes.
  void write(const ErrorRecord& record) noexcept;
  std::optional<ErrorRecord> read() const;

 private:
  std::uint32_t length_;  ///< of the text, written last
  std::uint32_t operation_length_;
  std::int32_t rank_;
  ErrorKind kind_;
  bool repeats_;
  bool raised_;
  std::array<char, 81> operation_;
  std::array<char, 4000> text_;
};

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
  std::atomic<bool> raised_{false};
  std::string first_;  ///< first operation; empty if the program raised the error
};

}  // namespace lockstep::detail
