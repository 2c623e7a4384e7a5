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
  bool by_program = false;  ///< an exception of that rank's program
};

/// The world's failure for an exception that ended a call: a timeout if it is a TimeoutError.
Failure failure_of(const std::exception& error);

/// The failure by an exception in the program of this rank of the world. Without a text if memory
/// is short.
Failure failure_of_program(int rank, std::string_view text) noexcept;

/// Throws the failure as the cause: a TimeoutError or a CommError.
[[noreturn]] void raise(const Failure& failure);

}  // namespace lockstep::control
