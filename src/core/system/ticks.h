#pragma once

#include <chrono>
#include <cstdint>

namespace lockstep::inline v0_2::detail {

/// Whether the processor's counter runs at one rate on all cores, as the kernel has found out.
extern const bool has_steady_counter;

/// A clock that takes less time to read than the steady clock: the processor's counter, or
/// nanoseconds of the steady clock where the counter is not steady. All processes of a host share
/// it.
inline std::uint64_t ticks() noexcept {
#if defined(__x86_64__)
  if (has_steady_counter) return __builtin_ia32_rdtsc();
#endif
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

/// One moment on three clocks.
struct TickTime {
  std::uint64_t ticks;
  std::int64_t steady;  ///< ns of the steady clock
  std::int64_t real;    ///< ns since 1970

  static TickTime now() noexcept;
};

/// Converts ticks to the other clocks, by two moments. The counter's rate is exact to about 1 µs
/// divided by the time between them.
class TickScale {
 public:
  TickScale(const TickTime& first, const TickTime& last);

  /// Nanoseconds since 1970.
  std::int64_t real(std::uint64_t ticks) const;
  /// Seconds from one moment to another; negative if `to` is earlier.
  double seconds(std::uint64_t from, std::uint64_t to) const;

 private:
  TickTime first_;
  double per_tick_;  ///< ns
};

}  // namespace lockstep::detail
