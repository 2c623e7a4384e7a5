#pragma once

#include <chrono>

#include "core/numeric/estimates.h"

namespace lockstep::bench {

/// Units: microseconds from an arbitrary point.
inline double now_us() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

using detail::median;

}  // namespace lockstep::bench
