#pragma once

#include <cstdint>

#include "comm/control/failure.h"

namespace lockstep::inline v0_2::mpi {

using control::Failure;

/// A tag that belongs to no group.
inline constexpr int notice_tag = 0;

/// A rank's message to all others that it has left or failed.
struct Notice {
  enum class Kind : std::int32_t { left, failed, timed_out };
  Kind kind;
  std::int32_t rank;
  std::int32_t rank_at_fault;  ///< of a failure, or -1
  bool by_program;             ///< Failure::by_program
  char text[2048];             ///< of a failure, ending with a zero
};

}  // namespace lockstep::mpi
