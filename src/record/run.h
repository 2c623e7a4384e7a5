#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::inline v0_2::record {

/// How one rank spent its time in an interval. Units: seconds.
struct RankInterval {
  double seconds = 0;
  double waiting = 0;             ///< for other ranks
  double working = 0;             ///< on collectives: reducing and copying
  double loading = 0;             ///< of the rest: waiting for a PrefetchLoader
  std::uint64_t bytes = 0;        ///< of collectives, in the form in which they travel
  std::uint64_t dense_bytes = 0;  ///< of what they stand for
  std::int64_t samples = 0;       ///< that it trained on; 0 where the program does not say

  double computing() const { return seconds - waiting - working; }
};

/// A stretch of training, as an epoch.
struct Interval {
  std::int64_t step = 0;   ///< how many have been taken at its end
  std::int64_t steps = 0;  ///< how many of them in it
  double elapsed = 0;      ///< seconds that the log covers so far
  std::vector<RankInterval> ranks = {};
};

/// One line of `intervals.jsonl`.
std::string interval_line(const Interval& interval);
/// The interval that a line holds, or nothing if the line is invalid.
std::optional<Interval> parse_interval(std::string_view line);

/// The values of one name by step; of a step that was taken again after a restart the later one.
using Curve = std::map<std::int64_t, double>;

/// The projection of a point to its value, or to `otherwise` where that is no number. NaN compares
/// as neither less nor greater: as the first point, it would be the least and the greatest one.
inline auto number_or(double otherwise) {
  return [otherwise](const Curve::value_type& point) {
    return std::isnan(point.second) ? otherwise : point.second;
  };
}

/// Whether the metric of this name is a loss.
inline bool is_loss(std::string_view name) { return name.ends_with("loss"); }

/// When a step was recorded.
struct Moment {
  double elapsed = 0;               ///< seconds that the log covers by then
  std::optional<double> wall_time;  ///< seconds since 1970
};

/// Nothing where there is no curve, or an empty one.
inline std::optional<double> last_of(const Curve* curve) {
  if (curve == nullptr || curve->empty()) return std::nullopt;
  return curve->rbegin()->second;
}

/// The content of a run's folder.
struct Run {
  std::string name;                                   ///< the folder's
  std::vector<std::pair<std::string, Curve>> curves;  ///< in the order of their first values
  std::vector<Interval> intervals;                    ///< of as many ranks as the last one
  std::vector<std::pair<std::string, std::string>> environment;  ///< for people
  std::vector<std::string> hosts;                                ///< of each rank, where known
  std::map<std::int64_t, Moment> moments;                        ///< of the steps of the curves
  std::size_t discarded = 0;  ///< records that a continued run has computed again
  bool has_several_hosts = false;
  bool has_trace = false;
  std::vector<std::string> remarks;  ///< what could not be read, or was left out

  /// Nothing where the run has no such curve.
  const Curve* curve(const std::string& metric) const;
  /// Of environment.json, as text; empty where it is not there.
  std::string setting(const std::string& variable) const;
  /// Whether all bytes go through the memory of one host.
  bool shares_memory() const;
};

/// Reads a run that has ended, or not yet.
/// Throws: InvalidArgument if the folder holds none.
Run read_run(const std::filesystem::path& folder);

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
  /// At least 1, to divide by.
  double step_count() const { return steps > 0 ? static_cast<double>(steps) : 1; }
};

/// `intervals`: at least one, all with the same number of ranks.
Totals totals(const std::vector<Interval>& intervals);

/// Curves of the intervals, by name: step_seconds, samples_per_second, and as means over ranks
/// compute_seconds, loading_seconds, communication_seconds and waiting_seconds. A curve that is 0
/// throughout is left out.
std::vector<std::pair<std::string, Curve>> interval_curves(const std::vector<Interval>& intervals);

}  // namespace lockstep::record
