#pragma once

#include <cstddef>
#include <vector>

#include "comm/cost.h"

namespace lockstep::inline v0_2::plan {

/// A measured all_reduce of float32 in group memory.
struct Measurement {
  enum class Over { memory, network };  ///< ranks of one host; ranks of a host each, by MPI

  Over over = Over::memory;
  int ranks = 2;
  double bytes = 0;
  double seconds = 0;
};

/// The costs that minimise the sum of squared relative errors between the formulas and the
/// measurements. Fits the costs of a meeting and of a byte in memory, and of a message and of a
/// byte between hosts. A cost without measurements, or with a fit below zero, keeps its value.
Costs fit(const Costs& costs, const std::vector<Measurement>& measurements);

/// The shortest buffer that the formulas describe: shorter buffers are eager messages, sent with
/// the announcements. Units: bytes
inline constexpr std::size_t shortest_fitted = 16 << 10;

}  // namespace lockstep::plan
