#pragma once

#include <cstddef>

#include "comm/placement.h"

namespace lockstep::inline v0_2 {

/// The resources that an exchange uses. Bytes are those of the host with the most.
/// docs/algorithms.md derives each figure.
struct Traffic {
  double meetings = 0;         ///< in memory, one after another
  double local_messages = 0;   ///< of MPI within a host, one after another
  double remote_messages = 0;  ///< of MPI between hosts, one after another
  double messages = 0;         ///< that one rank sends: each costs its processor
  double sent = 0;             ///< bytes that leave a host; as many come
  double moved = 0;            ///< bytes that a host's ranks read and write in memory

  Traffic& operator+=(const Traffic& other);
  friend Traffic operator+(Traffic a, const Traffic& b) { return a += b; }
  /// So many of them, one after another.
  friend Traffic operator*(double times, const Traffic& one);
};

/// The cost of one unit of each Traffic field. Units: seconds. The defaults are fitted to
/// docs/results.md; `lockstep bench` measures those of another machine.
struct Costs {
  double meeting = 0.5e-6;        ///< of two ranks
  double meeting_rank = 0.06e-6;  ///< for each further rank
  double local_message = 5e-6;
  double remote_message = 60e-6;
  double message = 2e-6;
  double sent_byte = 8.4e-9;     ///< over 1 Gbit/s, of which 95 % are reached
  double moved_byte = 0.022e-9;  ///< of a host, whose ranks share its memory

  /// Units: seconds, of the network and of the ranks' own processors.
  double seconds(const Traffic& traffic, const Placement& placement) const;
  double between_hosts(const Traffic& traffic) const;
  double of_processor(const Traffic& traffic, const Placement& placement) const;
};

/// Over memory, by ranks of one host: buffers in group memory, and in any other.
Traffic host_direct(int ranks, double bytes);
Traffic host_staged(int ranks, double bytes);

/// An all_reduce of so many bytes, by MPI alone.
Traffic mpi_direct(const Placement& placement, double bytes);
Traffic mpi_ring(const Placement& placement, double bytes);

/// An all_reduce in slices: memory inside hosts, MPI between them.
Traffic hierarchical_all_reduce(const Placement& placement, double bytes);

/// Every rank gives bytes, and gets those of all others.
Traffic mpi_all_gather(const Placement& placement, double bytes);
/// Every rank cuts bytes into a part for each rank.
Traffic mpi_all_to_all(const Placement& placement, double bytes);

}  // namespace lockstep
