#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

namespace lockstep::inline v0_2::detail {

/// The end of a wait that looks again and again. Time in which this process is stopped does not
/// count. A SIGSTOP, a frozen cgroup or a paused machine makes the interval between two looks far
/// longer than the wait sleeps.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  /// Longest sleep between two looks. Of an interval twice as much counts at most.
  static constexpr auto longest_nap = std::chrono::milliseconds(200);

  explicit Deadline(Clock::duration limit) : limit_(limit) {}

  /// Time that has counted so far.
  Clock::duration elapsed() {
    const auto now = Clock::now();
    elapsed_ += std::min<Clock::duration>(now - std::exchange(looked_, now), 2 * longest_nap);
    return elapsed_;
  }
  Clock::duration left() { return std::max(limit_ - elapsed(), Clock::duration::zero()); }
  bool passed() { return elapsed() >= limit_; }
  /// How long to sleep before the next look.
  Clock::duration nap() { return std::min<Clock::duration>(left(), longest_nap); }

 private:
  Clock::duration limit_;
  Clock::duration elapsed_{};
  Clock::time_point looked_ = Clock::now();
};

}  // namespace lockstep::detail
