#pragma once

#include <string>

#include "lockstep/error.h"

namespace lockstep::testing {

/// The message of the error of that type that fn throws; "" if it throws nothing.
template <class Thrown, class Fn>
std::string message_of(const Fn& fn) {
  try {
    fn();
  } catch (const Thrown& error) {
    return error.what();
  }
  return "";
}

/// That of a CheckpointError.
template <class Fn>
std::string failure(const Fn& fn) {
  return message_of<CheckpointError>(fn);
}

}  // namespace lockstep::testing
