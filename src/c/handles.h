#pragma once

#include <exception>
#include <memory>

#include "comm/communicator.h"
#include "lockstep/work.h"
#include "lockstep_c.h"

// The objects behind the pointers of lockstep_c.h.

struct lockstep_group {
  std::shared_ptr<lockstep::Communicator> communicator;
};

struct lockstep_work {
  lockstep::Work work;
  int32_t* source;  ///< gets the rank of the message that is received; null for other operations
};

namespace lockstep::inline v0_2::c {

/// The communicator of a group.
/// Throws: InvalidArgument naming the function if group is null.
Communicator& communicator_of(const char* function, const lockstep_group* group);

/// Throws: InvalidArgument naming the function and the argument if pointer is null.
void expect_pointer(const char* function, const char* argument, const void* pointer);

/// Throws: InvalidArgument naming the function for an unknown value.
DType dtype_of(const char* function, lockstep_dtype dtype);
ReduceOp op_of(const char* function, lockstep_op op);

/// Whether a function has returned the failure of the world. Errors that the program reports later
/// are effects of it.
bool world_failed() noexcept;

/// Keeps the error for the lockstep_error_... functions of the calling thread, and returns its
/// status.
lockstep_status keep_error(const std::exception& error) noexcept;
/// The same for an exception that is no std::exception.
lockstep_status keep_unknown_error() noexcept;

/// Calls the function, and returns LOCKSTEP_OK or the status of the error that it throws.
template <class Function>
lockstep_status status_of(const Function& function) noexcept {
  try {
    function();
    return LOCKSTEP_OK;
  } catch (const std::exception& error) {
    return keep_error(error);
  } catch (...) {
    return keep_unknown_error();
  }
}

}  // namespace lockstep::c
