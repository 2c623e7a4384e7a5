#pragma once

#include <exception>

#include "lockstep_c.h"

namespace lockstep::inline v0_2::c {

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
