#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "core/memory.h"

namespace lockstep::inline v0_2::launch {

/// Tells whether the kernel has ended a process lately because memory was short.
class OomWatch {
 public:
  using Clock = std::chrono::steady_clock;

  OomWatch() : before_(groups_.oom_kills()), last_(before_) {}

  /// Called about once a second: what happened longer than 10 s to 20 s ago is not lately.
  void look(Clock::time_point now);
  /// The event and its place; empty for none.
  std::string text() const;

 private:
  MemoryGroups groups_;
  std::uint64_t before_;  ///< kills, one or two looks ago
  std::uint64_t last_;
  Clock::time_point looked_ = Clock::now();
};

}  // namespace lockstep::launch
