#pragma once

#include <exception>
#include <string>

namespace lockstep::control {

/// Why a world ended.
struct Failure {
  bool timeout = false;
  std::string text = {};
};

/// What ended a call, as the world's failure: a timeout if it is a TimeoutError.
Failure failure_of(const std::exception& error);

}  // namespace lockstep::control
