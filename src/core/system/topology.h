#pragma once

#include <filesystem>
#include <istream>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline v0_2::detail {

/// This machine's host name; "unknown" if it has none.
std::string host_name();

/// The time in which these logical CPUs ran something, from the content of /proc/stat. Empty if one
/// of them is missing. Units: clock ticks.
/// Source: man 5 proc_stat
std::optional<double> busy_ticks(std::istream& stat, std::span<const int> cpus);

/// The time for which the logical CPUs of this process have worked so far. Units: seconds.
struct ProcessorTime {
  std::optional<double> busy;  ///< for all processes; empty where the kernel does not say
  double own = 0;              ///< for this process

  static ProcessorTime read(std::span<const int> cpus);
};

}  // namespace lockstep::detail

namespace lockstep::inline v0_2 {

/// The processors that a process may use, as physical cores in the order (NUMA node, package, first
/// CPU).
struct Topology {
  /// One physical core.
  struct Core {
    int node = 0;           ///< NUMA node
    int package = 0;        ///< socket
    std::vector<int> cpus;  ///< its allowed logical CPUs (SMT siblings), ascending

    bool operator==(const Core&) const = default;
  };

  std::vector<Core> cores;

  /// The logical CPUs of all cores.
  std::vector<int> cpus() const;
  /// The NUMA nodes of all cores, ascending.
  std::vector<int> nodes() const;

  /// The CPUs of this process's affinity mask, with their topology from /sys.
  static Topology read();

  /// The same for the given logical CPUs, from a folder like /sys/devices/system. If it lacks
  /// information, as in a container without /sys, every CPU is a core of one node.
  static Topology read(const std::filesystem::path& tree, std::span<const int> allowed);
};

/// Parses a CPU list in the kernel's format: "0-3,8" is 0, 1, 2, 3, 8. Skips parts that are not
/// numbers.
std::vector<int> parse_cpu_list(std::string_view text);

/// Formats a CPU list in the kernel's format: "0-3,8".
std::string format_cpu_list(std::span<const int> cpus);

}  // namespace lockstep
