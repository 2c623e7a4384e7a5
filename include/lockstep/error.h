#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace lockstep::inline v0_2 {

/// The kind of an Error: one value for each type below.
enum class ErrorKind : std::uint8_t {
  general,  ///< Error itself; as cause_kind(): any exception of a rank's program
  invalid_argument,
  communication,
  timeout,
  backend_unavailable,
  checkpoint,
  data,
  replica
};

/// The name of the enumerator, such as "invalid_argument".
constexpr const char* name(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::general:
      return "general";
    case ErrorKind::invalid_argument:
      return "invalid_argument";
    case ErrorKind::communication:
      return "communication";
    case ErrorKind::timeout:
      return "timeout";
    case ErrorKind::backend_unavailable:
      return "backend_unavailable";
    case ErrorKind::checkpoint:
      return "checkpoint";
    case ErrorKind::data:
      return "data";
    case ErrorKind::replica:
      return "replica";
  }
  return "unknown";
}

/// The facts about an error that a program can use without parsing its text.
struct ErrorDetails {
  int rank = -1;               ///< Error::rank()
  std::string operation = {};  ///< Error::operation()
  std::string cause = {};      ///< Error::cause()
  ErrorKind cause_kind =
      ErrorKind::general;  ///< Error::cause_kind(); used only if there is a cause
};

/// Base class of all exceptions that Lockstep throws. what() names the operation and the rank, the
/// value got, the value expected and the remedy. The accessors return the same facts as values.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& text, ErrorDetails details = {})
      : std::runtime_error(text),
        details_(std::make_shared<const ErrorDetails>(std::move(details))) {}

  virtual ErrorKind kind() const noexcept { return ErrorKind::general; }

  /// The world rank at fault; the lowest one if several are. -1 if no rank is at fault, if the rank
  /// is unknown, and for an error that this rank itself caused.
  int rank() const noexcept { return details_->rank; }

  /// The operation of this rank that raised the error, such as "all_reduce #17" or "init"; empty if
  /// no operation did.
  const std::string& operation() const noexcept { return details_->operation; }

  /// The text of the error that caused this one; empty if no other error did. For an error of a
  /// collective, it is the world's first failure, also on the rank that detected it. If
  /// all_or_none() repeats another rank's error, it is the text of that error.
  const std::string& cause() const noexcept { return details_->cause; }

  /// The kind of the error in cause(); kind() if cause() is empty. It is `general` if an exception
  /// of a rank's program ended the world.
  ErrorKind cause_kind() const noexcept {
    return details_->cause.empty() ? kind() : details_->cause_kind;
  }

  /// Sets the operation of an error that has none. For code that catches an error and rethrows it.
  void set_operation(std::string operation) {
    if (!details_->operation.empty()) return;
    auto details = *details_;
    details.operation = std::move(operation);
    details_ = std::make_shared<const ErrorDetails>(std::move(details));
  }

 private:
  std::shared_ptr<const ErrorDetails> details_;  ///< shared, so that a copy does not throw
};

/// The caller passed an invalid argument. Nothing was sent; the group stays usable.
class InvalidArgument : public Error {
 public:
  using Error::Error;
  ErrorKind kind() const noexcept override { return ErrorKind::invalid_argument; }
};

/// A collective or the world that it belongs to failed. Every later call on any group of that world
/// raises a CommError with the same cause.
class CommError : public Error {
 public:
  using Error::Error;
  ErrorKind kind() const noexcept override { return ErrorKind::communication; }
};

/// A rank did not take part in an operation within the timeout. The message names the operation and
/// the missing ranks.
class TimeoutError : public CommError {
 public:
  using CommError::CommError;
  ErrorKind kind() const noexcept override { return ErrorKind::timeout; }
};

/// A backend is not part of this build, or does not work on this machine.
class BackendUnavailable : public Error {
 public:
  using Error::Error;
  ErrorKind kind() const noexcept override { return ErrorKind::backend_unavailable; }
};

/// A checkpoint cannot be written or read, or does not fit the model.
class CheckpointError : public Error {
 public:
  using Error::Error;
  ErrorKind kind() const noexcept override { return ErrorKind::checkpoint; }
};

/// A data file is missing, truncated or corrupt. The message names the file, the offset, the
/// expected value and the value found.
class DataError : public Error {
 public:
  using Error::Error;
  ErrorKind kind() const noexcept override { return ErrorKind::data; }
};

/// Parameters that must be equal on all ranks differ. The message names the bucket, the parameter,
/// the ranks and likely causes. The group stays usable.
class ReplicaError : public Error {
 public:
  using Error::Error;
  ErrorKind kind() const noexcept override { return ErrorKind::replica; }
};

}  // namespace lockstep
