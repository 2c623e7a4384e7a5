#pragma once

#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include "core/system/process.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

/// The error by which a rank's program ended, for the report of `lockstep run`.
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
/// the error prints the backtrace; other ranks and the launcher report the rest.
std::string_view without_backtrace(std::string_view text) noexcept;

/// The record of an error, without its backtrace.
ErrorRecord record_of(const std::exception& error);

/// A memfd with one record for each rank. The launcher creates it, ranks inherit its descriptor
/// (LOCKSTEP_ERROR_FD), and the launcher reads it after a failure.
class ErrorRecords {
 public:
  /// Throws: CommError if the memfd cannot be created.
  ErrorRecords();

  int fd() const { return file_.get(); }
  /// The rank's record, if it wrote one.
  std::optional<ErrorRecord> of(int rank) const;

 private:
  Descriptor file_;
};

/// Writes this process's record, if `lockstep run` started it as a rank. Replaces an earlier
/// record. Truncates a text of more than 4000 bytes.
void leave_error_record(const ErrorRecord& record) noexcept;

/// Sets close-on-exec for the inherited memfd, so that programs that this process executes do not
/// inherit it.
void keep_error_file() noexcept;

}  // namespace lockstep::detail
