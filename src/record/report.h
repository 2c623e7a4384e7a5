#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "record/run.h"

namespace lockstep::inline v0_2::record {

/// Sums over all intervals.
struct Totals {
  std::vector<RankInterval> ranks;
  std::int64_t steps = 0;
  double computing = 0;     ///< computing's share of all ranks' time
  std::size_t slowest = 0;  ///< the rank that computed longest, for which the others wait
};
/// `intervals`: at least one, all with the same number of ranks.
Totals totals(const std::vector<Interval>& intervals);

/// One HTML page about a run that needs nothing else: no other file, no script.
std::string report_page(const Run& run, const std::string& title);

/// Makes a page of the run in the folder. Returns what could not be read, or was left out.
/// Throws: InvalidArgument if it holds none, Error if the page cannot be written.
std::vector<std::string> write_report(const std::filesystem::path& folder,
                                      const std::filesystem::path& page);

}  // namespace lockstep::record
