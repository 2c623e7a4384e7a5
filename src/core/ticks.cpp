#include "core/ticks.h"

#include <fstream>
#include <string>

namespace lockstep::inline v0_2::detail {
namespace {

/// The kernel uses the counter as its clock only if it is steady.
bool kernel_uses_counter() {
#if defined(__x86_64__)
  std::ifstream in("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string name;
  return std::getline(in, name) && name == "tsc";
#else
  return false;
#endif
}

std::int64_t nanoseconds(auto moment) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(moment.time_since_epoch()).count();
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
      per_tick_(last.ticks > first.ticks ? static_cast<double>(last.steady - first.steady) /
                                               static_cast<double>(last.ticks - first.ticks)
                                         : 1.0) {}

double TickScale::seconds(std::uint64_t from, std::uint64_t to) const {
  const auto ticks = static_cast<double>(static_cast<std::int64_t>(to - from));
  return ticks * per_tick_ / 1e9;
}

std::int64_t TickScale::real(std::uint64_t ticks) const {
  return first_.real + static_cast<std::int64_t>(seconds(first_.ticks, ticks) * 1e9);
}

}  // namespace lockstep::detail
