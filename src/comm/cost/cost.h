#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

namespace lockstep::inline v0_2::detail {

/// Identifies this host by the kernel's boot id and the network namespace. Processes with the same
/// value can share memory and connect to one another.
std::string this_host();

/// The host index of each rank, given the ranks' host ids. Hosts are numbered in the order of their
/// first ranks.
template <class Id>
std::vector<int> numbered_hosts(const std::vector<Id>& host_ids) {
  std::vector<int> numbers;
  std::vector<Id> known;
  for (const Id host : host_ids) {
    const auto found = std::ranges::find(known, host);
    numbers.push_back(static_cast<int>(found - known.begin()));
    if (found == known.end()) known.push_back(host);
  }
  return numbers;
}

}  // namespace lockstep::detail

namespace lockstep::inline v0_2 {

/// The distribution of a group's ranks over hosts, as far as the cost of an exchange depends on it.
/// A ring connects each rank to the next, and the last to the first.
struct Placement {
  int ranks = 1;
  int hosts = 1;
  int most_on_host = 1;   ///< ranks of the host with the most
  int least_on_host = 1;  ///< ranks of the host with the fewest
  int exits = 0;          ///< most ring links that lead from one host to others
  int crossings = 0;      ///< all ring links between hosts

  /// From the host index of each rank (Communicator::hosts()).
  static Placement of(std::span<const int> hosts);
  /// Hosts with equal numbers of ranks, which are consecutive on each host.
  static Placement uniform(int hosts, int ranks_per_host);
};

/// The resources that an exchange uses. Bytes are those of the host with the largest number.
/// docs/algorithms.md derives each formula.
struct Traffic {
  double synchronizations = 0;  ///< of a host's ranks in shared memory, in sequence
  double local_messages = 0;    ///< MPI messages within a host, in sequence
  double remote_messages = 0;   ///< MPI messages between hosts, in sequence
  double messages = 0;          ///< messages that one rank sends; each costs processor time
  double sent = 0;              ///< bytes that a host sends; it receives as many
  double moved = 0;             ///< bytes of memory that a host's ranks read and write

  Traffic& operator+=(const Traffic& other);
  friend Traffic operator+(Traffic a, const Traffic& b) { return a += b; }
  /// The traffic of `times` such exchanges in sequence.
  friend Traffic operator*(double times, const Traffic& one);
};

/// The cost of one unit of each Traffic field. The defaults are fitted to docs/results.md;
/// `lockstep bench` measures the values of another machine.
/// Units: seconds.
struct Costs {
  double synchronization = 0.5e-6;        ///< of two ranks in shared memory
  double synchronization_rank = 0.06e-6;  ///< in addition, for each rank after the second
  double local_message = 5e-6;
  double remote_message = 60e-6;
  double message = 2e-6;
  double sent_byte = 8.4e-9;     ///< at 95 % of 1 Gbit/s
  double moved_byte = 0.022e-9;  ///< the ranks of a host share its memory bandwidth

  /// Time on the network plus processor time of the ranks.
  /// Units: seconds.
  double seconds(const Traffic& traffic, const Placement& placement) const;
  double between_hosts(const Traffic& traffic) const;
  double of_processor(const Traffic& traffic, const Placement& placement) const;
};

/// An all_reduce of ranks of one host, with buffers in group memory.
/// Units: bytes of one rank's buffer.
Traffic host_direct(int ranks, double bytes);

/// An all_reduce over MPI only.
/// Units: bytes of one rank's buffer.
Traffic mpi_direct(const Placement& placement, double bytes);
Traffic mpi_ring(const Placement& placement, double bytes);

/// A hierarchical all_reduce: shared memory inside hosts, MPI between hosts.
/// Units: bytes of one rank's buffer.
Traffic hierarchical_all_reduce(const Placement& placement, double bytes);

/// An all_gather of `bytes` from every rank.
Traffic mpi_all_gather(const Placement& placement, double bytes);
/// An all_to_all of `bytes` from every rank, which are divided into a part for each rank.
Traffic mpi_all_to_all(const Placement& placement, double bytes);

}  // namespace lockstep
