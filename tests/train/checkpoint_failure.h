#pragma once

#include <functional>
#include <string>

#include "lockstep/error.h"

namespace lockstep::testing {

/// The message of the CheckpointError that fn throws.
inline std::string failure(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "no CheckpointError";
}

}  // namespace lockstep::testing
