#include "comm/rank_failure.h"

#include <new>

#include "core/log.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// The label of calls that are not operations.
constexpr std::string_view no_operation = "world";

}  // namespace

bool FailureRecord::record(const control::Failure& failure, bool of_others) noexcept {
  const std::lock_guard lock(mutex_);
  if (recorded_.load(std::memory_order_relaxed) && (of_others_ || !of_others)) return false;
  failure_.timeout = failure.timeout;
  failure_.rank = failure.rank;
  failure_.by_program = failure.by_program;
  try {
    failure_.text = failure.text;
  } catch (const std::bad_alloc&) {
    // Out of memory: the failure has no text.
  }
  of_others_ = of_others;
  recorded_.store(true, std::memory_order_release);
  return true;
}

bool FailureRecord::of_others() const {
  const std::lock_guard lock(mutex_);
  return of_others_;
}

control::Failure FailureRecord::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void RaisedFailure::raise(std::string_view where, const control::Failure& failure) {
  const auto operation = where.substr(0, where.find(" ("));
  const auto kind = failure.timeout      ? ErrorKind::timeout
                    : failure.by_program ? ErrorKind::general
                                         : ErrorKind::communication;
  const ErrorDetails details{.rank = failure.rank,
                             .operation = std::string(operation == no_operation ? "" : operation),
                             .cause = failure.text,
                             .cause_kind = kind};
  const auto error = text(where, failure.text);
  log::warn(error);
  if (failure.timeout) throw TimeoutError(error, details);
  throw CommError(error, details);
}

std::string RaisedFailure::text(std::string_view where, std::string_view cause) {
  if (raised()) {
    return concat(where, ": the world failed earlier", first_.empty() ? "" : ", in ", first_, ": ",
                  cause, "; a failed world cannot be used again: start all ranks anew");
  }
  first_ = where.substr(0, where.find(" ("));
  set_raised();
  return concat(where, ": ", cause);
}

}  // namespace lockstep::detail
