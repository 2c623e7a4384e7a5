#pragma once

#include <exception>
#include <string>

namespace lockstep::inline v0_2::control {

/// Why a world ended.
struct Failure {
  bool timeout = false;
  std::string text = {};
};

/// The world's failure for an exception that ended a call: a timeout if it is a TimeoutError.
Failure failure_of(const std::exception& error);

}  // namespace lockstep::control
