#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline v0_2::detail {

/// This machine's host name, for messages and names; "unknown" if it has none.
std::string host_name();

}  // namespace lockstep::detail

namespace lockstep::inline v0_2 {

/// The processors that a process may use, as physical cores in the order (NUMA node, package, first
/// CPU).
struct Topology {
  /// One physical core.
  struct Core {
    int node = 0;           ///< NUMA node
    int package = 0;        ///< socket
    std::vector<int> cpus;  ///< its allowed logical CPUs, SMT siblings together, ascending

    bool operator==(const Core&) const = default;
  };

  std::vector<Core> cores;

  /// The logical CPUs of all cores.
  std::vector<int> cpus() const;
  /// The NUMA nodes that have a core here, ascending.
  std::vector<int> nodes() const;

  /// The CPUs that this process may use: its affinity mask, arranged by /sys.
  static Topology read();

  /// The same for the given logical CPUs, from a tree like /sys/devices/system. Where the tree
  /// lacks information, as in a container without /sys, they are one node where each CPU is a core.
  static Topology read(const std::filesystem::path& tree, std::span<const int> allowed);
};

/// The numbers of a list as the kernel writes it: "0-3,8" is 0, 1, 2, 3, 8. Parts that are not
/// numbers are skipped.
std::vector<int> parse_cpu_list(std::string_view text);

/// The list that the kernel would write: "0-3,8".
std::string format_cpu_list(std::span<const int> cpus);

}  // namespace lockstep
