#include "core/system/ticks.h"

#include <algorithm>

#include "core/system/files.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// The kernel uses the counter as its clock only if it is steady.
bool kernel_uses_counter() {
#if defined(__x86_64__)
  return first_line("/sys/devices/system/clocksource/clocksource0/current_clocksource") == "tsc";
#else
  return false;
#endif
}

std::int64_t nanoseconds(auto moment) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(moment.time_since_epoch()).count();
}

/// later - earlier. Files of any content are read: the difference wraps instead of overflowing.
std::int64_t difference(auto later, auto earlier) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(later) -
                                   static_cast<std::uint64_t>(earlier));
}

}  // namespace

const bool has_steady_counter = kernel_uses_counter();

TickTime TickTime::now() noexcept {
  return {.ticks = detail::ticks(),
          .steady = nanoseconds(std::chrono::steady_clock::now()),
          .real = nanoseconds(std::chrono::system_clock::now())};
}

TickScale::TickScale(const TickTime& first, const TickTime& last)
    : first_(first),
      per_tick_(last.ticks > first.ticks
                    ? static_cast<double>(difference(last.steady, first.steady)) /
                          static_cast<double>(last.ticks - first.ticks)
                    : 1.0) {}

double TickScale::seconds(std::uint64_t from, std::uint64_t to) const {
  return static_cast<double>(difference(to, from)) * per_tick_ / 1e9;
}

std::int64_t TickScale::real(std::uint64_t ticks) const {
  constexpr double limit = 9e18;
  const auto passed = std::clamp(seconds(first_.ticks, ticks) * 1e9, -limit, limit);
  return difference(first_.real, -static_cast<std::int64_t>(passed));
}

}  // namespace lockstep::detail
