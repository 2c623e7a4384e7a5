#pragma once

#include <string>

#include "lockstep/error.h"

namespace lockstep::testing {

/// The fields of an error: "timeout by rank 1 in all_reduce #17, cause timeout".
inline std::string fields_of(const Error& error) {
  return std::string(name(error.kind())) + " by rank " + std::to_string(error.rank()) + " in " +
         error.operation() + ", cause " + name(error.cause_kind());
}

}  // namespace lockstep::testing
