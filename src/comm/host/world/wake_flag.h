#pragma once

#include <chrono>
#include <cstdint>

#include "comm/host/world/world_layout.h"

// How a rank sleeps until another rank has published data. The sleeping rank sets `asleep`, then
// polls once more, then sleeps on its wake_flag, a futex. The publishing rank first publishes, then
// reads `asleep`. A full fence on both sides guarantees that at least one of the two sees the
// other's write.

namespace lockstep::inline v0_2::host {

/// Wakes the rank if it sleeps. Call it after publishing and a full fence.
template <class Atomics>
void wake(BasicRankState<Atomics>& state) {
  if (state.asleep.load(Atomics::order(Access::asleep_read)) == 0) return;
  state.wake_flag.fetch_add(1, Atomics::order(Access::wake_flag_add));
  Atomics::wake(state.wake_flag);
}

/// Executes the fence and wakes those of these ranks that sleep, except the calling rank.
template <class Arena, class Ranks>
void wake_ranks(const Arena& arena, const Ranks& ranks, int own_rank) {
  using Atomics = typename Arena::Atomics;
  Atomics::fence(Access::wake_fence);
  if (arena.header().sleepers.load(Atomics::order(Access::sleepers_read)) == 0) return;
  for (const int rank : ranks) {
    if (rank != own_rank) wake(arena.rank(rank));
  }
}

/// Executes the fence and wakes every sleeping rank of the world.
template <class Arena>
void wake_all(const Arena& arena) noexcept {
  Arena::Atomics::fence(Access::wake_all_fence);
  for (int rank = 0; rank < arena.size(); ++rank) wake(arena.rank(rank));
}

/// Marks this rank as asleep until the end of the scope.
template <class Arena>
class FutexSleep {
 public:
  using Atomics = typename Arena::Atomics;

  FutexSleep(const Arena& arena, int rank)
      : header_(arena.header()),
        state_(arena.rank(rank)),
        wake_flag_(state_.wake_flag.load(Atomics::order(Access::wake_flag_read))) {
    state_.asleep.store(1, Atomics::order(Access::asleep_set));
    header_.sleepers.fetch_add(1, Atomics::order(Access::sleepers_add));
    Atomics::fence(Access::sleep_fence);
  }
  ~FutexSleep() {
    header_.sleepers.fetch_sub(1, Atomics::order(Access::sleepers_sub));
    state_.asleep.store(0, Atomics::order(Access::asleep_clear));
  }
  FutexSleep(const FutexSleep&) = delete;
  FutexSleep& operator=(const FutexSleep&) = delete;

  /// Sleeps until another rank wakes this one, at most this long. Returns at once if it was woken
  /// since construction.
  void sleep(std::chrono::nanoseconds longest) const {
    Atomics::wait(state_.wake_flag, wake_flag_, longest);
  }

 private:
  BasicHeader<Atomics>& header_;
  BasicRankState<Atomics>& state_;
  std::uint32_t wake_flag_;
};

/// Marks the rank as asleep and calls over(). Unless it returns true, sleeps until another rank
/// wakes this one, at most this long. Returns the result of over().
template <class Arena, class Over>
bool sleep_unless(const Arena& arena, int rank, const Over& over,
                  std::chrono::nanoseconds longest) {
  const FutexSleep<Arena> futex(arena, rank);
  if (over()) return true;
  futex.sleep(longest);
  return false;
}

}  // namespace lockstep::host
