#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/flight/deadlock.h"
#include "comm/flight/flight_record.h"

namespace lockstep::inline v0_2::detail {

/// One rank of a job, from its flight record and its process.
struct ObservedRank {
  enum class State {
    running,
    stopped,  ///< by SIGSTOP or a debugger
    ended,    ///< its process does not exist any more
    unknown   ///< the record is a copy of an earlier time
  };

  std::shared_ptr<const FlightRecord> record;
  State state = State::unknown;

  int rank() const { return record->rank(); }
};

/// The state of the process that writes the record.
ObservedRank observe(std::shared_ptr<const FlightRecord> record);

/// Why the ranks of a job wait.
struct Diagnosis {
  enum class Kind {
    none,      ///< no rank waits for longer than the limit
    missing,   ///< ranks wait for ranks that do not wait themselves
    deadlock,  ///< ranks wait for one another
    unseen,    ///< ranks wait for ranks without a record on this host
    transit    ///< every rank takes part: data is in transit
  };
  /// A rank that waits, and the ranks that it waits for.
  struct Edge {
    /// Whether the missing ranks have begun the operation. If they have, its data are in transit,
    /// and the wait is part of no deadlock.
    enum class Begun { no, unknown, yes };

    int rank;
    FlightRecord::Wait wait;
    std::vector<int> missing;
    Begun begun = Begun::unknown;
  };

  Kind kind = Kind::none;
  /// The ranks that others wait for, or that wait for one another; ascending. In a deadlock in
  /// which all other ranks wait for one rank only, that rank.
  std::vector<int> ranks;
  std::vector<int> waiting;  ///< the ranks that wait directly for `ranks`, ascending
  double seconds = 0;        ///< longest of these waits
  std::vector<Edge> edges;   ///< of all ranks that wait
  /// A sentence for each fact, without line feeds.
  std::vector<std::string> text;
};

std::string_view name(Diagnosis::Kind kind);

/// Diagnoses the ranks of one job, from records of about the same time. Waits shorter than `least`
/// seconds are not considered.
Diagnosis diagnose(const std::vector<ObservedRank>& ranks, double least);

/// The waits that the records of these ranks prove, for find_deadlock(). Ranks are stuck if it
/// finds the same deadlock again a second later.
WaitOf recorded_waits(const std::vector<ObservedRank>& ranks);

/// "all_reduce #17 of the world", "recv #2 from rank 1 of the group of ranks 0, 1".
std::string operation_text(const FlightRecord& record, const FlightRecord::Entry& entry);

/// "the world", "the group of ranks 0, 1".
std::string group_text(const FlightRecord& record, std::uint64_t key);

/// "3.1 s", "2 min", "1.5 h".
std::string duration_text(double seconds);

}  // namespace lockstep::detail
