#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace lockstep::inline v0_2::control {

/// Why a world ended.
struct Failure {
  bool timeout = false;
  std::string text = {};
  int rank = -1;            ///< the world rank at fault, or -1
  bool by_program = false;  ///< the cause is an exception of that rank's program
};

/// Converts an exception to a failure of the world; a TimeoutError becomes a timeout.
Failure failure_of(const std::exception& error);

/// The failure for an exception in the program of this world rank. It has no text if memory is
/// short.
Failure failure_of_program(int rank, std::string_view text) noexcept;

/// Throws the failure as a TimeoutError or a CommError.
[[noreturn]] void raise(const Failure& failure);

}  // namespace lockstep::control
