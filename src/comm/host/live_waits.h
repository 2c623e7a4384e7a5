#pragma once

#include <optional>
#include <vector>

#include "comm/flight/deadlock.h"
#include "comm/host/world/arena.h"
#include "comm/host/world/wait_record.h"
#include "comm/host/world/world_layout.h"

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

/// The deadlock that the rank of the arena is in, or that a rank that it waits for is in, from the
/// published waits. Any rank may call it. world_ranks: of the ranks of the arena; empty: the same
/// numbers.
std::optional<detail::Deadlock> find_deadlock(const Arena& arena, int rank,
                                              std::vector<int> world_ranks = {});

}  // namespace lockstep::host
