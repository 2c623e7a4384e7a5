#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::inline v0_2::detail {

/// The wait of a rank for ranks that have not begun its operation. Only they can end it.
struct PendingWait {
  int rank;                  ///< world rank
  std::uint64_t turn;        ///< identifies the wait; every wait of a rank has another turn
  std::string operation;     ///< "all_reduce #17 of the world"
  std::vector<int> missing;  ///< the world ranks that it is for
  bool for_any = false;  ///< one of the missing ranks can end it, as for a receive from any source

  bool operator==(const PendingWait&) const = default;
};

/// The wait that a world rank is in; nullopt if it is in none, or if something else may end it.
using WaitOf = std::function<std::optional<PendingWait>(int rank)>;
/// No rank waits.
inline std::optional<PendingWait> no_waits(int /*rank*/) { return std::nullopt; }

/// Keeps the waits that never end: each is for a rank whose wait never ends, or for any of several
/// such ranks. waits: by rank.
void keep_endless(std::map<int, PendingWait>& waits);
/// The waits of a cycle that the rank is in, or waits for, the lowest rank first; empty if its wait
/// can end. Each is for one rank of the list. With waits for any of several ranks, for all of
/// these, so the list is more than a cycle.
std::vector<PendingWait> endless_cycle(std::map<int, PendingWait> waits, int rank);

/// Ranks that wait for one another, in operations that the others have not begun. Note [How ranks
/// find a deadlock] is in deadlock.cpp.
struct Deadlock {
  /// The world rank that the first one waits for.
  int rank_at_fault() const { return waits.front().missing.front(); }
  /// The error text that names ranks, operations and groups.
  std::string text() const;

  bool operator==(const Deadlock&) const = default;

  /// Each rank waits for ranks of the list. The first is the lowest of a cycle.
  std::vector<PendingWait> waits;
};

/// The deadlock that the world rank is in, or that a rank that it waits for is in.
std::optional<Deadlock> find_deadlock(const WaitOf& wait_of, int rank);

}  // namespace lockstep::detail
