#include "core/failure.h"

#include <algorithm>
#include <cstddef>
#include <new>

#include "core/log.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// How the backtrace of a c10::Error begins.
constexpr std::string_view backtrace_begin = "\nException raised from ";

/// The label of calls that are not operations.
constexpr std::string_view no_operation = "world";

}  // namespace

std::string_view without_backtrace(std::string_view text) noexcept {
  const auto rest = text.substr(0, text.find(backtrace_begin));
  return rest.empty() ? "unknown error" : rest;
}

std::string current_error_text() {
  try {
    throw;
  } catch (const std::exception& error) {
    return std::string(without_backtrace(error.what()));
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

ErrorRecord record_of(const std::exception& error) {
  ErrorRecord record{.text = std::string(without_backtrace(error.what()))};
  if (const auto* known = dynamic_cast<const Error*>(&error)) {
    record.kind = known->kind();
    record.rank = known->rank();
    record.repeats = !known->cause().empty();
    record.operation = known->operation();
  }
  return record;
}

void ErrorSlot::write(const ErrorRecord& record) noexcept {
  length_ = 0;
  kind_ = record.kind;
  rank_ = record.rank;
  repeats_ = record.repeats;
  raised_ = record.raised;
  operation_length_ =
      static_cast<std::uint32_t>(record.operation.copy(operation_.data(), operation_.size()));
  length_ = static_cast<std::uint32_t>(record.text.copy(text_.data(), text_.size()));
}

std::optional<ErrorRecord> ErrorSlot::read() const {
  if (length_ == 0) return std::nullopt;
  // The memory may be that of a program with an error.
  const auto length = std::min<std::size_t>(length_, text_.size());
  const auto operation_length = std::min<std::size_t>(operation_length_, operation_.size());
  return ErrorRecord{.kind = kind_,
                     .rank = rank_,
                     .repeats = repeats_,
                     .raised = raised_,
                     .text = {text_.data(), length},
                     .operation = {operation_.data(), operation_length}};
}

Failure Failure::with(std::string_view other) const noexcept {
  Failure failure{.kind = kind, .rank = rank};
  try {
    failure.text = other;
  } catch (const std::bad_alloc&) {
    failure.text = "a rank failed";  // short enough not to allocate memory
  }
  return failure;
}

Failure::Kind failure_kind(std::int32_t value) {
  const bool known = value >= 0 && value <= static_cast<std::int32_t>(Failure::Kind::crashed);
  return known ? Failure::Kind{value} : Failure::Kind::elsewhere;
}

Failure failure_of(const std::exception& error) {
  Failure failure{.text = std::string(without_backtrace(error.what()))};
  const auto* known = dynamic_cast<const Error*>(&error);
  if (dynamic_cast<const TimeoutError*>(&error) != nullptr) {
    failure.kind = Failure::Kind::timeout;
  } else if (known != nullptr && known->cause_kind() == ErrorKind::general) {
    failure.kind = Failure::Kind::error;
  }
  if (known != nullptr) failure.rank = known->rank();
  return failure;
}

void raise(const Failure& failure) {
  if (failure.timeout()) throw TimeoutError(failure.text, {.rank = failure.rank});
  throw CommError(failure.text, {.rank = failure.rank});
}

bool FailureRecord::record(const Failure& failure, bool is_agreed) noexcept {
  const std::lock_guard lock(mutex_);
  if (recorded_.load(std::memory_order_relaxed) && (is_agreed_ || !is_agreed)) return false;
  failure_ = failure.with(failure.text);
  is_agreed_ = is_agreed;
  recorded_.store(true, std::memory_order_release);
  return true;
}

bool FailureRecord::is_agreed() const {
  const std::lock_guard lock(mutex_);
  return is_agreed_;
}

Failure FailureRecord::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void RaisedFailure::raise(std::string_view where, const Failure& failure) {
  const auto operation = where.substr(0, where.find(" ("));
  const auto kind = failure.timeout()      ? ErrorKind::timeout
                    : failure.by_program() ? ErrorKind::general
                                           : ErrorKind::communication;
  const ErrorDetails details{.rank = failure.rank,
                             .operation = std::string(operation == no_operation ? "" : operation),
                             .cause = failure.text,
                             .cause_kind = kind};
  std::string error;
  if (raised()) {
    error = concat(where, ": the world failed earlier", first_.empty() ? "" : ", in ", first_, ": ",
                   failure.text, "; a failed world cannot be used again: start all ranks anew");
  } else {
    first_ = operation;
    set_raised();
    error = concat(where, ": ", failure.text);
  }
  log::warn(error);
  if (failure.timeout()) throw TimeoutError(error, details);
  throw CommError(error, details);
}

}  // namespace lockstep::detail
