#pragma once

#include <exception>
#include <optional>
#include <string>

#include "core/process.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

/// The error that a rank's program ended with, as the rank leaves it for `lockstep run`.
struct ErrorRecord {
  ErrorKind kind = ErrorKind::general;
  int rank = -1;         ///< Error::rank()
  bool repeats = false;  ///< another error caused it: Error::cause() is not empty
  std::string text = {};
  std::string operation = {};  ///< Error::operation()

  /// A failure of the world, which another rank may have caused.
  bool of_world() const { return kind == ErrorKind::communication || kind == ErrorKind::timeout; }
};

/// The record of an error.
ErrorRecord record_of(const std::exception& error);

/// A memory file with one record of each rank. The launcher makes it, ranks inherit its descriptor
/// (LOCKSTEP_ERROR_FD), and the launcher reads it when a job has failed.
class ErrorRecords {
 public:
  /// Throws: CommError when the machine refuses the memory file.
  ErrorRecords();

  int fd() const { return file_.get(); }
  /// The rank's record, if it left one.
  std::optional<ErrorRecord> of(int rank) const;

 private:
  Descriptor file_;
};

/// Leaves this process's record, if `lockstep run` started it as a rank. The last one counts; a
/// long text is cut.
void leave_error_record(const ErrorRecord& record) noexcept;

/// Makes the inherited file one that no program inherits which this process executes.
void keep_error_file() noexcept;

}  // namespace lockstep::detail
