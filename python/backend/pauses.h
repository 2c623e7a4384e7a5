#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "comm/waiting.h"

namespace lockstep_torch {

/// The pauses of a thread that polls: spins first, then yields, then sleeps.
class Pauses {
 public:
  explicit Pauses(std::chrono::microseconds spin)
      : longest_spin_(std::min(spin, std::chrono::microseconds(50))), spin_(spin) {}

  /// After progress. Other ranks take less than 50 µs for a piece of a large operation if they run.
  /// On a busy machine they may not: a thread that had to sleep spins for a shorter time then. It
  /// does not yield, because it runs sooner after a short sleep.
  void restart() {
    spin_ = slept_ ? spin_ / 4 : longest_spin_;
    yield_ = {};
    slept_ = false;
    polls_ = 0;
    begin_ = std::chrono::steady_clock::now();
  }
  void pause() {
    if (++polls_ % 16 != 0) {
      lockstep::detail::relax();
      return;
    }
    const auto idle = std::chrono::steady_clock::now() - begin_;
    if (idle < spin_) return;
    if (idle < spin_ + yield_) {
      ::sched_yield();
    } else {
      slept_ = true;
      std::this_thread::sleep_for(
          idle < std::chrono::milliseconds(20)    ? std::chrono::microseconds(30)
          : idle < std::chrono::milliseconds(500) ? std::chrono::microseconds(120)
                                                  : std::chrono::milliseconds(4));
    }
    polls_ = 15;
  }

 private:
  std::chrono::microseconds longest_spin_;  ///< after progress
  std::chrono::microseconds spin_;
  std::chrono::microseconds yield_ = std::chrono::microseconds(200);
  bool slept_ = false;
  int polls_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace lockstep_torch
