#include "backend/errors.h"

#include <c10/util/Exception.h>

#include "lockstep/error.h"

namespace lockstep_torch {

std::invalid_argument refusal(const char* operation, const std::string& what) {
  return std::invalid_argument(std::string("lockstep ") + operation + ": " + what);
}

void refuse(const char* operation, const std::string& what) { throw refusal(operation, what); }

void fail(const std::string& text) { C10_THROW_ERROR(DistBackendError, text); }

std::exception_ptr python_error(std::exception_ptr error) {
  try {
    try {
      std::rethrow_exception(error);
    } catch (const lockstep::InvalidArgument& refused) {
      throw std::invalid_argument(refused.what());
    } catch (const lockstep::Error& failure) {
      fail(failure.what());
    }
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace lockstep_torch
