#pragma once

#include <algorithm>
#include <chrono>

namespace lockstep::inline v0_2::launch {

/// The time between a failure and the next attempt. It doubles from one failure to the next, up to
/// a minute, and begins anew after an attempt that lasted that long.
class Backoff {
 public:
  using Milliseconds = std::chrono::milliseconds;
  static constexpr Milliseconds longest{60'000};

  explicit Backoff(Milliseconds first) : first_(first), next_(first) {}

  /// After an attempt that failed after this time.
  Milliseconds after(Milliseconds lasted) {
    if (lasted >= longest) next_ = first_;
    const auto delay = next_;
    next_ = std::min(2 * next_, std::max(first_, longest));
    return delay;
  }

 private:
  Milliseconds first_;
  Milliseconds next_;
};

}  // namespace lockstep::launch
