#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep::inline v0_2::detail {

/// Identifies this host by the kernel's boot id and the network namespace. Processes with the same
/// value can share memory and connect to one another.
std::string this_host();

/// The host index of each rank, given the ranks' host ids. Hosts are numbered in the order of their
/// first ranks.
std::vector<int> numbered_hosts(std::span<const std::uint64_t> host_ids);

/// The host index of each of these ranks, renumbered in the order of the hosts' first ranks.
std::vector<int> hosts_of(std::span<const int> ranks, std::span<const int> hosts);

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

}  // namespace lockstep
