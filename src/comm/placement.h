#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep::inline v0_2::detail {

/// Identifies this host by the kernel's boot and the network namespace. Processes with the same
/// value can share memory and connect to one another.
std::string this_host();

/// Which host each rank is on, numbered in the order of their first ranks, from what each rank's
/// host is known by.
std::vector<int> numbered_hosts(std::span<const std::uint64_t> known_by);

/// The same for the group of these ranks.
std::vector<int> hosts_of(std::span<const int> ranks, std::span<const int> hosts);

}  // namespace lockstep::detail

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
