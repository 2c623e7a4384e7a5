#include "comm/control/failure.h"

#include <new>

#include "core/error_record.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::control {

Failure failure_of(const std::exception& error) {
  Failure failure{.timeout = dynamic_cast<const TimeoutError*>(&error) != nullptr,
                  .text = std::string(detail::without_backtrace(error.what()))};
  if (const auto* known = dynamic_cast<const Error*>(&error)) {
    failure.rank = known->rank();
    failure.by_program = known->cause_kind() == ErrorKind::general;
  }
  return failure;
}

Failure failure_of_program(int rank, std::string_view text) noexcept {
  Failure failure{.rank = rank, .by_program = true};
  try {
    failure.text = text;
  } catch (const std::bad_alloc&) {
    // Out of memory: the failure has no text.
  }
  return failure;
}

void raise(const Failure& failure) {
  if (failure.timeout) throw TimeoutError(failure.text, {.rank = failure.rank});
  throw CommError(failure.text, {.rank = failure.rank});
}

}  // namespace lockstep::control
