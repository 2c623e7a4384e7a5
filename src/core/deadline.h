#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <type_traits>
#include <utility>

namespace lockstep::inline v0_2::detail {

/// The deadline of a wait that polls. Time in which this process is stopped (by SIGSTOP, a frozen
/// cgroup or a paused machine) does not count: such a stop makes the interval between two polls
/// much longer than the sleep.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  /// Longest sleep between two polls. At most twice this time of an interval is counted.
  static constexpr auto longest_nap = std::chrono::milliseconds(200);

  /// A longer limit counts as this one, so that sums and conversions do not overflow.
  static constexpr std::chrono::milliseconds longest = std::chrono::hours(24 * 365);

  template <class Rep, class Period>
  explicit Deadline(std::chrono::duration<Rep, Period> limit)
      : limit_(std::min<std::common_type_t<decltype(limit), decltype(longest)>>(limit, longest)) {}

  /// Time that was counted so far.
  Clock::duration elapsed() {
    const auto now = Clock::now();
    elapsed_ += std::min<Clock::duration>(now - std::exchange(polled_, now), 2 * longest_nap);
    return elapsed_;
  }
  Clock::duration left() { return std::max(limit_ - elapsed(), Clock::duration::zero()); }
  bool passed() { return elapsed() >= limit_; }
  /// Time to sleep before the next poll.
  Clock::duration nap() { return std::min<Clock::duration>(left(), longest_nap); }

 private:
  Clock::duration limit_;
  Clock::duration elapsed_{};
  Clock::time_point polled_ = Clock::now();
};

/// The times at which a long wait is reported: a first one, and each doubled one.
class ReportTimes {
 public:
  /// first: 0 for never.
  explicit ReportTimes(std::chrono::milliseconds first) : next_(first) {}

  /// The last of these times that a wait of this length has reached; nullopt if the last call has
  /// returned it, or if there is none.
  std::optional<std::chrono::milliseconds> due(std::chrono::steady_clock::duration waited) {
    std::optional<std::chrono::milliseconds> passed;
    for (; next_.count() > 0 && next_ <= waited; next_ *= 2) passed = next_;
    return passed;
  }

 private:
  std::chrono::milliseconds next_;
};

}  // namespace lockstep::detail
