#pragma once

#include <istream>
#include <optional>
#include <span>

namespace lockstep::inline v0_2::detail {

/// The time in which these logical CPUs ran something, from the content of /proc/stat. Empty if one
/// of them is missing. Units: clock ticks.
/// Source: man 5 proc_stat
std::optional<double> busy_ticks(std::istream& stat, std::span<const int> cpus);

/// What the logical CPUs that this process may use have done so far. Units: seconds.
struct ProcessorTime {
  std::optional<double> busy;  ///< for all processes; empty where the kernel does not say
  double own = 0;              ///< for this process

  static ProcessorTime read(std::span<const int> cpus);
};

}  // namespace lockstep::detail
