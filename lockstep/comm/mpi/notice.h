#pragma once

#include <cstdint>

#include "lockstep/comm/control/failure.h"

namespace lockstep::mpi {

using control::Failure;

/// What one rank tells all others of itself.
struct Notice {
  enum class Kind : std::int32_t { left, failed, timed_out };
  Kind kind;
  std::int32_t rank;
  char text[2048];  ///< of a failure, ending with a zero
};

}  // namespace lockstep::mpi
