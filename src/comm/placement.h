#pragma once

#include <span>

namespace lockstep::inline v0_2 {

/// Where the ranks of a group are, as far as an exchange between them depends on it.
struct Placement {
  int ranks = 1;
  int hosts = 1;
  int most_on_host = 1;   ///< ranks of the fullest host
  int least_on_host = 1;  ///< ranks of the emptiest
  int exits = 0;          ///< of one host at most: ranks whose next in the ring is on another host
  int crossings = 0;      ///< ranks of all hosts whose next in the ring is on another host

  /// From the host of each rank, as Communicator::hosts() has it.
  static Placement of(std::span<const int> hosts);
  /// Equal hosts, with neighbours on the same one.
  static Placement uniform(int hosts, int ranks_per_host);
};

}  // namespace lockstep
