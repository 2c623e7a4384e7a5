#pragma once

#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep::testing {

/// How a group sums float32 and float64, where not all of them in the order of ranks.
struct Sums {
  /// Which host each rank is on, where floats are summed host by host, and travel as halves between
  /// hosts only; empty where all ranks are alike.
  std::vector<int> hosts = {};
  /// Each slice in the order of a ring, where they do not travel as halves.
  bool ring = false;
};

/// What every backend must do: all collectives over dtypes, operations, sizes and places of memory,
/// compared byte for byte with scalar code. Collective over the group. Throws: std::runtime_error
/// naming the first difference.
void check_collectives(Communicator& group, const Sums& sums = {});

/// Several operations in flight at once, of one group and of overlapping groups, waited for out of
/// order.
void check_in_flight(Communicator& group, const Sums& sums = {});

/// Operations begun and awaited at random moments, their buffers at random places.
void check_skew(Communicator& group);

/// split() by color and key, its groups used at the same time as their parent.
void check_split(Communicator& group, const Sums& sums = {});

/// Memory that other ranks find by its place, where ranks share memory.
void check_places(Communicator& group);

/// Messages between pairs of ranks, to oneself, in both directions at once.
void check_messages(Communicator& group);

}  // namespace lockstep::testing
