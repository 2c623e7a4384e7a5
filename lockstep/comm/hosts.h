#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep::detail {

/// What processes that can share memory and meet have in common: the kernel that was booted, and
/// the network namespace.
std::string this_host();

/// Which host each rank is on, numbered in the order of their first ranks, from what each rank's
/// host is known by.
std::vector<int> numbered_hosts(std::span<const std::uint64_t> known_by);

/// The same for the group of these ranks.
std::vector<int> hosts_of(std::span<const int> ranks, std::span<const int> hosts);

}  // namespace lockstep::detail
