#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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

}  // namespace lockstep::record
