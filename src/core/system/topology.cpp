#include "core/system/topology.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <tuple>

#include "core/environment.h"
#include "core/system/files.h"
#include "core/text.h"

namespace lockstep::inline v0_2::detail {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

std::optional<double> busy_ticks(std::istream& stat, std::span<const int> cpus) {
  double busy = 0;
  std::size_t found = 0;
  for (std::string line; std::getline(stat, line);) {
    std::istringstream fields(line);
    std::string name;
    fields >> name;
    if (!name.starts_with("cpu")) continue;
    const auto cpu = parse_number<int>(std::string_view(name).substr(3));
    if (!cpu || std::ranges::find(cpus, *cpu) == cpus.end()) continue;
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

namespace lockstep::inline v0_2 {
namespace {

using detail::first_line;
using std::filesystem::path;

std::optional<int> number(std::string_view text) {
  const auto value = detail::parse_number<int>(text);
  return value && *value >= 0 ? value : std::nullopt;
}

std::map<int, int> node_of_cpu(const path& tree) {
  std::map<int, int> nodes;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(tree / "node", none)) {
    const auto name = entry.path().filename().string();
    if (!name.starts_with("node")) continue;
    const auto node = number(std::string_view(name).substr(4));
    if (!node) continue;
    for (const int cpu : parse_cpu_list(first_line(entry.path() / "cpulist"))) nodes[cpu] = *node;
  }
  return nodes;
}

std::vector<int> allowed_cpus() {
  for (int capacity = 1024; capacity <= 1 << 20; capacity *= 2) {
    const std::size_t bytes = CPU_ALLOC_SIZE(capacity);
    std::vector<cpu_set_t> mask((bytes + sizeof(cpu_set_t) - 1) / sizeof(cpu_set_t));
    if (sched_getaffinity(0, bytes, mask.data()) != 0) {
      if (errno == EINVAL) continue;  // the kernel's mask is larger
      break;
    }
    std::vector<int> cpus;
    for (int cpu = 0; cpu < capacity; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, mask.data())) cpus.push_back(cpu);
    }
    return cpus;
  }
  return {0};
}

}  // namespace

std::vector<int> Topology::cpus() const {
  std::vector<int> all;
  for (const auto& core : cores) all.insert(all.end(), core.cpus.begin(), core.cpus.end());
  return all;
}

std::vector<int> Topology::nodes() const {
  std::set<int> all;
  for (const auto& core : cores) all.insert(core.node);
  return {all.begin(), all.end()};
}

Topology Topology::read() {
  const auto allowed = allowed_cpus();
  return read("/sys/devices/system", allowed);
}

Topology Topology::read(const path& tree, std::span<const int> allowed) {
  auto nodes = node_of_cpu(tree);
  // SMT siblings have the same first CPU in their sibling lists, also if that CPU is not allowed.
  std::map<std::tuple<int, int, int>, Core> cores;
  for (const int cpu : allowed) {
    const auto folder = tree / "cpu" / detail::concat("cpu", cpu) / "topology";
    const auto siblings = parse_cpu_list(first_line(folder / "thread_siblings_list"));
    const int first = siblings.empty() ? cpu : siblings.front();
    const int package = number(first_line(folder / "physical_package_id")).value_or(0);
    const int node = nodes[cpu];  // 0 if the tree names none
    auto& core = cores[{node, package, first}];
    core.node = node;
    core.package = package;
    core.cpus.push_back(cpu);
  }
  Topology topology;
  for (auto& [key, core] : cores) {
    std::sort(core.cpus.begin(), core.cpus.end());
    topology.cores.push_back(std::move(core));
  }
  return topology;
}

std::vector<int> parse_cpu_list(std::string_view text) {
  constexpr int most = 1 << 20;
  std::vector<int> cpus;
  for (const std::string_view part : detail::lines_in(std::string(text), ',')) {
    const auto dash = part.find('-');
    const auto low = number(part.substr(0, dash));
    const auto high = dash == part.npos ? low : number(part.substr(dash + 1));
    if (!low || !high || *high > most) continue;
    for (int cpu = *low; cpu <= *high; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

std::string format_cpu_list(std::span<const int> cpus) {
  std::string text;
  for (std::size_t begin = 0; begin < cpus.size();) {
    std::size_t end = begin + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    if (!text.empty()) text += ',';
    text += std::to_string(cpus[begin]);
    if (end - begin > 1) text += detail::concat('-', cpus[end - 1]);
    begin = end;
  }
  return text;
}

}  // namespace lockstep
