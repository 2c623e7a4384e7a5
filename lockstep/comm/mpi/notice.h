#pragma once

#include <cstdint>
#include <string>

namespace lockstep::mpi {

/// Why a world ended.
struct Failure {
  bool timeout = false;
  std::string text = {};
};

/// What one rank tells all others of itself.
struct Notice {
  enum class Kind : std::int32_t { left, failed, timed_out };
  Kind kind;
  std::int32_t rank;
  char text[2048];  ///< of a failure, ending with a zero
};

}  // namespace lockstep::mpi
