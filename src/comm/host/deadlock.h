#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/host/arena.h"
#include "comm/host/wait_record.h"
#include "comm/host/world_layout.h"
#include "comm/operation.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::host {

/// Publishes a wait of this rank until the end of the scope.
class PublishedWait {
 public:
  PublishedWait(RankState& state, const Waited& waited);
  ~PublishedWait();
  PublishedWait(const PublishedWait&) = delete;
  PublishedWait& operator=(const PublishedWait&) = delete;

 private:
  WaitRecord& record_;
};

/// Ranks that wait for one another, in operations that the others have not begun. Note [How ranks
/// find a deadlock] is in deadlock.cpp.
class Deadlock {
 public:
  /// One rank of the cycle.
  struct Member {
    int rank;
    std::uint64_t turn;  ///< identifies the wait; every wait of a rank has another turn
    Waited waited;
    std::vector<int> group;  ///< ranks of the group's members
    /// The rank that it waits for; those of which it waits for any, for a receive from any source.
    std::vector<int> targets;

    bool operator==(const Member&) const = default;
    bool for_any() const {
      return waited.collective == Collective::recv && waited.peer == any_source;
    }
  };

  /// Each rank waits for ranks of the list. The first is the lowest of a cycle.
  explicit Deadlock(std::vector<Member> members) : members_(std::move(members)) {}

  /// The rank that the first one waits for.
  int rank_at_fault() const { return members_.front().targets.front(); }
  /// The error text that names ranks, operations and groups. world_rank converts a rank of this
  /// arena.
  std::string text(const std::function<int(int)>& world_rank) const;

  bool operator==(const Deadlock&) const = default;

 private:
  std::vector<Member> members_;
};

/// The deadlock that the rank is in, or that a rank that it waits for is in. Any rank may call it.
std::optional<Deadlock> find_deadlock(const Arena& arena, int rank);

}  // namespace lockstep::host
