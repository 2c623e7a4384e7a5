#pragma once

#include <stdexcept>
#include <string>

namespace lockstep::inline v0_2 {

/// Base of everything Lockstep throws. The message says who, where, what was got, what was
/// expected.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  /// An error that repeats what another rank of the world has met.
  Error(const std::string& text, int origin) : std::runtime_error(text), origin_(origin) {}

  /// The rank of the world that met the error first; -1 where it is this rank's own.
  int origin() const noexcept { return origin_; }

 private:
  int origin_ = -1;
};

/// The caller passed something unusable. Nothing was sent; the group stays usable.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// A collective or the world it runs in failed. Every later call on any group of that world raises
/// it too.
class CommError : public Error {
 public:
  using Error::Error;
};

/// A rank did not arrive in time. The message names the operation and the ranks that are missing.
class TimeoutError : public CommError {
 public:
  using CommError::CommError;
};

/// A backend is not part of this build or cannot work on this machine.
class BackendUnavailable : public Error {
 public:
  using Error::Error;
};

/// A checkpoint cannot be written, read, or does not fit the model.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

/// A data file is missing, short or corrupt. The message names file, offset, expected and found.
class DataError : public Error {
 public:
  using Error::Error;
};

/// Parameters that must be equal on all ranks differ. The message names bucket, parameter, ranks
/// and likely causes. The group stays usable.
class ReplicaError : public Error {
 public:
  using Error::Error;
};

}  // namespace lockstep
