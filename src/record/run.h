#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "record/interval.h"

namespace lockstep::inline v0_2::record {

/// The values of one name by step; of a step that was taken again after a restart the later one.
using Curve = std::map<std::int64_t, double>;

/// The content of a run's folder.
struct Run {
  std::vector<std::pair<std::string, Curve>> curves;  ///< in the order of their first values
  std::vector<Interval> intervals;                    ///< of as many ranks as the last one
  std::vector<std::pair<std::string, std::string>> environment;  ///< for people
  std::vector<std::string> hosts;                                ///< of each rank, where known
  bool has_several_hosts = false;
  bool has_trace = false;
  std::vector<std::string> remarks;  ///< what could not be read, or was left out

  const Curve* curve(const std::string& name) const;
};

/// Reads a run that has ended, or not yet.
/// Throws: InvalidArgument if the folder holds none.
Run read_run(const std::filesystem::path& folder);

}  // namespace lockstep::record
