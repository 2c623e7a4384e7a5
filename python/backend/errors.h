#pragma once

#include <exception>
#include <stdexcept>
#include <string>

namespace lockstep_torch {

/// "lockstep all_reduce: " and the text. Python sees it as ValueError.
std::invalid_argument refusal(const char* operation, const std::string& what);
/// Throws refusal().
[[noreturn]] void refuse(const char* operation, const std::string& what);

/// Throws c10::DistBackendError, which Python sees as torch.distributed.DistBackendError.
[[noreturn]] void fail(const std::string& text);

/// The exception that PyTorch translates to Python: a lockstep::InvalidArgument becomes ValueError,
/// any other lockstep::Error becomes DistBackendError. Others stay as they are.
std::exception_ptr python_error(std::exception_ptr error);

/// Calls the function and throws python_error() of what it throws.
template <class Function>
auto with_python_errors(Function&& function) {
  try {
    return function();
  } catch (...) {
    std::rethrow_exception(python_error(std::current_exception()));
  }
}

}  // namespace lockstep_torch
