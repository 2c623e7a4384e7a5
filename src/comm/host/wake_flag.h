#pragma once

#include <chrono>
#include <cstdint>

#include "comm/host/arena.h"

// How a rank sleeps until another has published something.
// A sleeper says that it sleeps, then looks once more, then sleeps on its wake_flag; who publishes
// does so first, then looks for sleepers. A full fence on both sides makes sure that one of the two
// sees the other.

namespace lockstep::inline v0_2::host {

/// Wakes the rank if it sleeps. Call after a full fence behind what was published.
void wake(RankState& state) noexcept;

/// Wakes every sleeping rank of the world, fence included.
void wake_all(const Arena& arena) noexcept;

/// This rank as a sleeper, from construction to destruction.
class Nap {
 public:
  Nap(const Arena& arena, int rank);
  ~Nap();
  Nap(const Nap&) = delete;
  Nap& operator=(const Nap&) = delete;

  /// Sleeps until rung since construction, or for at most this long.
  void sleep(std::chrono::nanoseconds longest) const;

 private:
  Header& header_;
  RankState& state_;
  std::uint32_t wake_flag_;
};

}  // namespace lockstep::host
