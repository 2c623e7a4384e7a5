#pragma once

#include <array>
#include <cstdint>
#include <exception>
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
/// the error prints the backtrace; other ranks and the launcher report the rest.
std::string_view without_backtrace(std::string_view text) noexcept;

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

}  // namespace lockstep::detail
