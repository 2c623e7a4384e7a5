#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/comm/cost.h"

namespace lockstep::plan {

/// A measured all_reduce of float32 in group memory.
struct Measurement {
  enum class Over { memory, network };  ///< ranks of one host; ranks of a host each, by MPI

  Over over = Over::memory;
  int ranks = 2;
  double bytes = 0;
  double seconds = 0;
};

/// The costs with which the formulas come nearest to what was measured, by the sum of squared
/// relative errors: a meeting and a byte in memory, a message to another host and a byte to it.
/// What nothing was measured of stays as it is; so does what would come out below zero.
Costs fit(const Costs& costs, const std::vector<Measurement>& measurements);

/// The shortest buffer that goes the way that the formulas count: shorter ones travel with their
/// announcements. Units: bytes
inline constexpr std::size_t shortest_fitted = 16 << 10;

}  // namespace lockstep::plan
