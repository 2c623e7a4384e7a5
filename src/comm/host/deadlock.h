#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/host/arena.h"
#include "comm/host/world_layout.h"
#include "comm/operation.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::host {

/// The operation that a rank waits in, and the group that it belongs to.
struct Waited {
  std::uint64_t group = 0;  ///< where the group's block lies in the arena
  int members = 0;          ///< of the group
  int member = 0;           ///< this rank's number in the group
  int number = 0;           ///< of the group: 0 is the world
  Collective collective = Collective::barrier;
  int peer = -1;  ///< of a message
  std::uint64_t sequence = 0;
  Source source = {};

  bool operator==(const Waited&) const = default;
};

/// Publishes a wait of this rank while it lives.
class PublishedWait {
 public:
  PublishedWait(RankState& state, const Waited& waited);
  ~PublishedWait();
  PublishedWait(const PublishedWait&) = delete;
  PublishedWait& operator=(const PublishedWait&) = delete;

 private:
  WaitRecord& record_;
};

/// A cycle of ranks: each waits for an operation that the next has not begun. Note
/// [How ranks find a deadlock] is in deadlock.cpp.
class Deadlock {
 public:
  /// One rank of the cycle.
  struct Member {
    int rank;
    std::uint64_t turn;  ///< of the rank's waits: another wait has another turn
    Waited waited;
    std::vector<int> group;  ///< world ranks

    bool operator==(const Member&) const = default;
  };

  /// Each rank waits for the next, the last for the first.
  explicit Deadlock(std::vector<Member> cycle);

  /// The rank that the first one waits for.
  int rank_at_fault() const { return cycle_[1 % cycle_.size()].rank; }
  /// The sentence that names ranks, operations and groups; named says what a rank is called.
  std::string text(const std::function<int(int)>& named) const;

  bool operator==(const Deadlock&) const = default;

 private:
  std::vector<Member> cycle_;  ///< from its lowest rank on
};

/// The deadlock that the rank waits in or behind, if there is one. Any rank may ask.
std::optional<Deadlock> find_deadlock(const Arena& arena, int rank);

}  // namespace lockstep::host
