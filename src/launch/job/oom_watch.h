#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "core/system/memory.h"
#include "core/text.h"

namespace lockstep::inline v0_2::launch {

/// Detects whether the kernel has recently killed a process because memory was short.
class OomWatch {
 public:
  using Clock = std::chrono::steady_clock;

  OomWatch() : before_(groups_.oom_kills()), last_(before_) {}

  /// Call it about once a second. Kills of more than 10 s to 20 s ago are not recent.
  void update(Clock::time_point now) {
    constexpr auto interval = std::chrono::seconds(10);
    if (now - updated_ < interval) return;
    updated_ = now;
    before_ = last_;
    last_ = groups_.oom_kills();
  }
  /// The text about a recent kill; empty if there was none.
  std::string text() const {
    if (groups_.oom_kills() <= before_) return "";
    return detail::concat("the kernel ended a process of ", groups_.oom_scope(),
                          " because memory was short");
  }

 private:
  MemoryGroups groups_;
  std::uint64_t before_;  ///< number of kills, 10 s to 20 s ago
  std::uint64_t last_;
  Clock::time_point updated_ = Clock::now();
};

}  // namespace lockstep::launch
