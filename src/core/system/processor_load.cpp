#include "core/system/processor_load.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

namespace lockstep::inline v0_2::detail {

std::optional<double> busy_ticks(std::istream& stat, std::span<const int> cpus) {
  double busy = 0;
  std::size_t found = 0;
  for (std::string line; std::getline(stat, line);) {
    std::istringstream fields(line);
    std::string name;
    fields >> name;
    if (name.size() < 4 || !name.starts_with("cpu") ||
        name.find_first_not_of("0123456789", 3) != std::string::npos || name.size() > 9) {
      continue;
    }
    if (std::ranges::find(cpus, std::stoi(name.substr(3))) == cpus.end()) continue;
    // user, nice, system, idle, iowait, irq, softirq, steal; the guests' are parts of user and nice
    double ticks = 0;
    for (int field = 0; field < 8 && fields >> ticks; ++field) {
      if (field != 3 && field != 4) busy += ticks;
    }
    ++found;
  }
  if (found != cpus.size() || cpus.empty()) return std::nullopt;
  return busy;
}

ProcessorTime ProcessorTime::read(std::span<const int> cpus) {
  ProcessorTime time;
  std::ifstream stat("/proc/stat");
  if (const auto ticks = busy_ticks(stat, cpus)) {
    time.busy = *ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
  }
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) == 0) {
    for (const timeval& part : {usage.ru_utime, usage.ru_stime}) {
      time.own += static_cast<double>(part.tv_sec) + static_cast<double>(part.tv_usec) * 1e-6;
    }
  }
  return time;
}

}  // namespace lockstep::detail
