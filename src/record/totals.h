#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "record/run.h"

namespace lockstep::inline v0_2::record {

/// Sums over all intervals.
struct Totals {
  std::vector<RankInterval> ranks;
  std::int64_t steps = 0;
  double computing = 0;     ///< computing's share of all ranks' time
  std::size_t slowest = 0;  ///< the rank that computed longest, for which the others wait

  /// Of the rank that took longest. Units: seconds.
  double step_seconds() const;
  /// The ranks' mean of a part of a step, as &RankInterval::waiting. Units: seconds or bytes.
  template <class Part>
  double mean(const Part& part) const {
    double sum = 0;
    for (const auto& rank : ranks) sum += static_cast<double>(std::invoke(part, rank));
    return sum / static_cast<double>(ranks.size()) / step_count();
  }
  /// Samples a second of all ranks; 0 where the program does not count them.
  double samples_per_second() const;

 private:
  double step_count() const { return steps > 0 ? static_cast<double>(steps) : 1; }
};

/// `intervals`: at least one, all with the same number of ranks.
Totals totals(const std::vector<Interval>& intervals);

/// Curves of the intervals, by name: step_seconds, samples_per_second, and as means over ranks
/// compute_seconds, loading_seconds, communication_seconds and waiting_seconds. A curve that is 0
/// throughout is left out.
std::vector<std::pair<std::string, Curve>> interval_curves(const std::vector<Interval>& intervals);

}  // namespace lockstep::record
