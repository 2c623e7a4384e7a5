#pragma once

#include <cstddef>
#include <vector>

#include "comm/cost.h"

namespace lockstep::inline v0_2::plan {

/// A measured all_reduce of float32 in group memory.
struct Measurement {
  enum class Over {
    memory,
    network
  };  ///< between ranks of one host, or between hosts with one rank each over MPI

  Over over = Over::memory;
  int ranks = 2;
  double bytes = 0;  ///< of one rank's buffer
  double seconds = 0;
};

/// The costs that minimise the sum of squared relative errors between the cost formulas and the
/// measurements. Fits `synchronization` and `moved_byte` to those in memory, `remote_message` and
/// `sent_byte` to those over the network. A cost without measurements, or with a fit below zero,
/// keeps its value.
Costs fit(const Costs& costs, const std::vector<Measurement>& measurements);

/// The formulas describe buffers above this size. Shorter ones are eager: sent with the
/// announcements.
/// Units: bytes.
inline constexpr std::size_t shortest_fitted = 16 << 10;

}  // namespace lockstep::plan
