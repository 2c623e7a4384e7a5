#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace lockstep::bench {

/// Units: microseconds from an arbitrary point.
inline double now_us() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// The middle of a non-empty list; of two middle ones their mean.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace lockstep::bench
