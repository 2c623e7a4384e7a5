#include "comm/cost/placement.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "comm/split.h"
#include "core/system/topology.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// Replaces keys by numbers 0, 1, … in the order of their first occurrence.
template <class Key>
std::vector<int> numbered(std::span<const Key> keys) {
  std::vector<int> numbers;
  std::vector<Key> known;
  for (const Key& key : keys) {
    const auto found = std::ranges::find(known, key);
    numbers.push_back(static_cast<int>(found - known.begin()));
    if (found == known.end()) known.push_back(key);
  }
  return numbers;
}

}  // namespace

std::string this_host() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  // Without /proc, the host name identifies the host.
  if (boot.empty()) boot = host_name();
  std::array<char, 64> network{};
  if (::readlink("/proc/self/ns/net", network.data(), network.size() - 1) < 0) network[0] = '\0';
  return boot + " " + network.data();
}

std::vector<int> numbered_hosts(std::span<const std::uint64_t> host_ids) {
  return numbered(host_ids);
}

std::vector<int> hosts_of(std::span<const int> ranks, std::span<const int> hosts) {
  const auto of_ranks = at_ranks(hosts, ranks);
  return numbered(std::span<const int>(of_ranks));
}

}  // namespace lockstep::detail
