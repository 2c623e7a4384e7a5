#pragma once

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

/// The published waits of the ranks of the arena, for detail::find_deadlock(). Any rank may call
/// it. world_ranks: of the ranks of the arena; empty: the same numbers.
detail::WaitOf live_waits(const Arena& arena, std::vector<int> world_ranks = {});

}  // namespace lockstep::host
