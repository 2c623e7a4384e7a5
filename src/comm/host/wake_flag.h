#pragma once

#include <chrono>
#include <cstdint>

#include "comm/host/arena.h"

// How a rank sleeps until another rank has published data. The sleeping rank sets `asleep`, then
// polls once more, then sleeps on its wake_flag, a futex. The publishing rank first publishes, then
// reads `asleep`. A full fence on both sides guarantees that at least one of the two sees the
// other's write.

namespace lockstep::inline v0_2::host {

/// Wakes the rank if it sleeps. Call it after publishing and a full fence.
void wake(RankState& state) noexcept;

/// Executes the fence and wakes every sleeping rank of the world.
void wake_all(const Arena& arena) noexcept;

/// Marks this rank as asleep until the end of the scope.
class FutexSleep {
 public:
  FutexSleep(const Arena& arena, int rank);
  ~FutexSleep();
  FutexSleep(const FutexSleep&) = delete;
  FutexSleep& operator=(const FutexSleep&) = delete;

  /// Sleeps until another rank wakes this one, at most this long. Returns at once if it was woken
  /// since construction.
  void sleep(std::chrono::nanoseconds longest) const;

 private:
  Header& header_;
  RankState& state_;
  std::uint32_t wake_flag_;
};

}  // namespace lockstep::host
