#include <string>

#include "c/handles.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::c {
namespace {

/// The error that a thread asks for by the lockstep_error_... functions.
struct LastError {
  std::string text;
  std::string operation;
  std::string cause;
  int rank = -1;
};

LastError& last_error() {
  thread_local LastError error;
  return error;
}

lockstep_status status_of_kind(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid_argument:
      return LOCKSTEP_INVALID_ARGUMENT;
    case ErrorKind::communication:
      return LOCKSTEP_COMMUNICATION_ERROR;
    case ErrorKind::timeout:
      return LOCKSTEP_TIMEOUT;
    case ErrorKind::backend_unavailable:
      return LOCKSTEP_BACKEND_UNAVAILABLE;
    default:
      return LOCKSTEP_ERROR;
  }
}

}  // namespace

lockstep_status keep_error(const std::exception& error) noexcept {
  auto& last = last_error();
  const auto* known = dynamic_cast<const Error*>(&error);
  const auto status = known == nullptr ? LOCKSTEP_ERROR : status_of_kind(known->kind());
  try {
    LastError kept{.text = error.what(), .operation = {}, .cause = {}, .rank = -1};
    if (known != nullptr) {
      kept.operation = known->operation();
      kept.cause = known->cause();
      kept.rank = known->rank();
    }
    last = std::move(kept);
  } catch (const std::exception&) {
    // Out of memory: the status tells the kind.
    last.text.clear();
  }
  return status;
}

lockstep_status keep_unknown_error() noexcept {
  last_error() = {};
  return LOCKSTEP_ERROR;
}

}  // namespace lockstep::c

const char* lockstep_error_text() { return lockstep::c::last_error().text.c_str(); }
const char* lockstep_error_operation() { return lockstep::c::last_error().operation.c_str(); }
const char* lockstep_error_cause() { return lockstep::c::last_error().cause.c_str(); }
int32_t lockstep_error_rank() { return lockstep::c::last_error().rank; }
