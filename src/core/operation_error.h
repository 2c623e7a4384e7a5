#pragma once

#include <string>
#include <string_view>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

/// Throws an InvalidArgument of this operation. Its text is "OPERATION: " and the parts.
template <class... Parts>
[[noreturn]] void throw_invalid(std::string_view operation, const Parts&... parts) {
  throw InvalidArgument(concat(operation, ": ", parts...), {.operation = std::string(operation)});
}

/// Runs fn, and sets the operation of its Error if that has none.
template <class Fn>
auto as_operation(const char* operation, const Fn& fn) {
  try {
    return fn();
  } catch (Error& error) {
    error.set_operation(operation);
    throw;
  }
}

}  // namespace lockstep::detail
