#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::record {

/// How one rank spent its time in an interval. Units: seconds.
struct RankLap {
  double seconds = 0;
  double waiting = 0;             ///< for other ranks
  double working = 0;             ///< on collectives: reducing and copying
  std::uint64_t bytes = 0;        ///< of collectives, in the form in which they travel
  std::uint64_t dense_bytes = 0;  ///< of what they stand for

  double computing() const { return seconds - waiting - working; }
};

/// A stretch of training, as an epoch.
struct Lap {
  std::int64_t step = 0;   ///< how many have been taken at its end
  std::int64_t steps = 0;  ///< how many of them in it
  double elapsed = 0;      ///< seconds since the log was opened
  std::vector<RankLap> ranks = {};
};

/// One line of `laps.jsonl`.
std::string lap_line(const Lap& lap);
/// The interval that a line holds, or nothing if the line is invalid.
std::optional<Lap> parse_lap(std::string_view line);

}  // namespace lockstep::record
