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
