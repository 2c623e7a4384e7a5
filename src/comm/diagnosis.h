#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/flight_record.h"

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
    /// Whether the targets have begun the operation. If they have, its data are in transit, and the
    /// wait is part of no deadlock.
    enum class Begun { no, unknown, yes };

    int rank;
    FlightRecord::Wait wait;
    std::vector<int> targets;
    Begun begun = Begun::unknown;

    /// Whether one of the targets ends the wait.
    bool for_any() const {
      return wait.entry.collective == Collective::recv && wait.entry.peer < 0;
    }
  };

  Kind kind = Kind::none;
  /// The ranks that others wait for, or that wait for one another; ascending. In a deadlock in
  /// which all other ranks wait for one rank only, that rank.
  std::vector<int> ranks;
  /// The operation that the first of `waiting` waits in.
  std::optional<FlightRecord::Wait> wait;
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

/// Keeps the waits that never end: each is for a rank whose wait never ends, or for any of several
/// such ranks. Wait has `targets` and `for_any()`. No target has begun the operation that its
/// waiter waits in.
template <class Wait>
void keep_endless(std::map<int, Wait>& waits) {
  const auto is_stuck = [&](int rank) { return waits.contains(rank); };
  const auto can_end = [&](const auto& wait) {
    const auto& targets = wait.second.targets;
    return wait.second.for_any() ? !std::ranges::all_of(targets, is_stuck)
                                 : std::ranges::none_of(targets, is_stuck);
  };
  while (std::erase_if(waits, can_end) > 0) {
  }
}

/// The waits of a cycle that the rank is in, or waits for, the lowest rank first; empty if its wait
/// can end. Each is for one rank of the list. With waits for any of several ranks, for all of
/// these, so the list is more than a cycle. As keep_endless(); Wait also has `rank`.
template <class Wait>
std::vector<Wait> endless_cycle(std::map<int, Wait> waits, int rank) {
  keep_endless(waits);
  std::vector<Wait> members;
  if (!waits.contains(rank)) return members;
  for (auto& [waiter, wait] : waits) {
    if (wait.for_any()) continue;
    wait.targets = {
        *std::ranges::find_if(wait.targets, [&](int target) { return waits.contains(target); })};
  }
  std::vector<int> walk;
  while (std::ranges::find(walk, rank) == walk.end()) {
    walk.push_back(rank);
    rank = waits.at(rank).targets.front();
  }
  members.push_back(waits.at(*std::min_element(std::ranges::find(walk, rank), walk.end())));
  for (std::size_t i = 0; i < members.size(); ++i) {
    for (const int target : std::vector(members[i].targets)) {
      const auto known = std::ranges::find(members, target, &Wait::rank);
      if (known == members.end()) members.push_back(waits.at(target));
    }
  }
  return members;
}

/// A rank of a deadlock, for the error text.
struct StuckRank {
  int rank;
  std::string operation;  ///< "all_reduce #17 of the world"
  std::vector<int> targets;
};
/// The error text that names these ranks, in which each waits for others.
std::string deadlock_text(std::span<const StuckRank> ranks);

/// A deadlock that records prove.
struct RecordedDeadlock {
  std::string text;
  int rank_at_fault;
  std::vector<std::pair<int, std::uint64_t>> waits;  ///< its ranks, and FlightRecord::Wait::turn

  bool operator==(const RecordedDeadlock&) const = default;
};

/// The deadlock that the rank is in, or that a rank that it waits for is in, of ranks with records
/// here. Ranks are stuck if it is found again a second later.
std::optional<RecordedDeadlock> find_deadlock(const std::vector<ObservedRank>& ranks, int rank);

/// "all_reduce #17 of the world", "recv #2 from rank 1 of the group of ranks 0, 1".
std::string operation_text(const FlightRecord& record, const FlightRecord::Entry& entry);

/// "the world", "the group of ranks 0, 1".
std::string group_text(const FlightRecord& record, std::uint64_t key);

/// Describes what a rank does, as "it has waited in all_reduce #17 of the world for 3.1 s" or "its
/// process is stopped (SIGSTOP or a debugger); its last operation is …".
std::string activity_text(const ObservedRank& rank);

/// "3.1 s", "2 min", "1.5 h".
std::string duration_text(double seconds);

}  // namespace lockstep::detail
