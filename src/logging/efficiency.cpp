#include "lockstep/efficiency.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/numeric/estimates.h"
#include "core/system/topology.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double most_other_load = 0.1;
constexpr double widest_spread = 0.2;
constexpr double highest = 1.05;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Waits until the device has run the work of the current stream.
void wait_for(at::Device device) {
  if (device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
}

/// What a rank saw of its processors while it measured.
struct Load {
  double node;
  double cpu_set;  ///< a number for the CPUs that the rank may use: ranks with the same share them
  double process;
  double busy;      ///< of the CPUs, for all processes; negative if unknown
  double own;       ///< of the process
  double capacity;  ///< of the CPUs, had they been busy all the time
};
constexpr std::int64_t load_fields = sizeof(Load) / sizeof(double);

/// The greatest share of the processors that programs other than the ranks used.
double other_load(const std::vector<Load>& loads) {
  struct Shared {
    double busy = 0;
    double own = 0;
    double capacity = 0;
    std::set<double> processes;
  };
  std::map<std::pair<double, double>, Shared> sets;
  for (const Load& load : loads) {
    if (load.busy < 0 || load.capacity <= 0) continue;
    Shared& shared = sets[{load.node, load.cpu_set}];
    shared.busy = std::max(shared.busy, load.busy);
    shared.capacity = std::max(shared.capacity, load.capacity);
    // Thread ranks share the time of their process.
    if (shared.processes.insert(load.process).second) shared.own += load.own;
  }
  double most = 0;
  for (const auto& [where, shared] : sets) {
    most = std::max(most, (shared.busy - shared.own) / shared.capacity);
  }
  return most;
}

/// Measures the load of a rank's processors from its construction on.
class LoadMeter {
 public:
  LoadMeter() : cpus_(Topology::read().cpus()), before_(detail::ProcessorTime::read(cpus_)) {}

  Load read(int node) const {
    const auto now = detail::ProcessorTime::read(cpus_);
    double cpu_set = 0;
    for (const int cpu : cpus_) cpu_set = std::fmod(cpu_set * 4099 + cpu + 1, 1e12);
    return {.node = static_cast<double>(node),
            .cpu_set = cpu_set,
            .process = static_cast<double>(::getpid()),
            .busy = now.busy && before_.busy ? *now.busy - *before_.busy : -1,
            .own = now.own - before_.own,
            .capacity = seconds_since(begin_) * static_cast<double>(cpus_.size())};
  }

 private:
  std::vector<int> cpus_;
  Clock::time_point begin_ = Clock::now();
  detail::ProcessorTime before_;
};

}  // namespace

Efficiency efficiency_of(std::span<const double> alone, std::span<const double> together,
                         double other_load) {
  if (alone.empty() || alone.size() != together.size()) {
    throw InvalidArgument(
        detail::concat("efficiency: got ", alone.size(), " rounds alone and ", together.size(),
                       " together, expected as many, at least one"),
        {.operation = "efficiency"});
  }
  std::vector<double> each;
  for (std::size_t i = 0; i < alone.size(); ++i) each.push_back(alone[i] / together[i]);
  Efficiency result{.alone = detail::median({alone.begin(), alone.end()}),
                    .together = detail::median({together.begin(), together.end()}),
                    .median = detail::median(each),
                    .least = std::ranges::min(each),
                    .most = std::ranges::max(each),
                    .rounds = static_cast<int>(each.size())};
  if (other_load > most_other_load) {
    result.doubt = detail::concat("other programs used ", std::llround(100 * other_load),
                                  " % of the processors");
  } else if (!(result.most - result.least <= widest_spread)) {
    result.doubt =
        detail::concat("the rounds differ too much, from ", detail::fixed(100 * result.least, 1),
                       " to ", detail::fixed(100 * result.most, 1), " %");
  } else if (result.median > highest) {
    result.doubt = "a step of one rank alone took longer than a step of all ranks together";
  }
  return result;
}

Efficiency measure_efficiency(const Group& world, const std::function<void()>& alone,
                              const std::function<void()>& together,
                              const EfficiencyOptions& options) {
  if (options.rounds < 1 || options.time.count() < 0) {
    throw InvalidArgument(
        detail::concat("measure_efficiency: got ", options.rounds, " rounds of ",
                       options.time.count(), " ms, expected at least 1 round and a time from 0 on"),
        {.operation = "measure_efficiency"});
  }
  const Group host = world.host();
  const auto time = [&](const std::function<void()>& step, int steps) {
    const auto begin = Clock::now();
    for (int i = 0; i < steps; ++i) step();
    wait_for(world.device());
    return seconds_since(begin) / steps;
  };
  constexpr int warm_up = 2;
  constexpr double most_steps = 1000;
  time(together, warm_up);
  const double wanted = std::chrono::duration<double>(options.time).count();
  const at::Tensor steps = at::empty({1}, at::kDouble);
  *steps.mutable_data_ptr<double>() = std::clamp(wanted / time(together, warm_up), 1.0, most_steps);
  host.broadcast(steps).wait();  // rank 0's time decides for all
  const int count = static_cast<int>(*steps.const_data_ptr<double>());
  if (world.rank() == 0) time(alone, warm_up);

  const LoadMeter meter;
  const at::Tensor times = at::empty({2, options.rounds}, at::kDouble);
  auto* const of_alone = times.mutable_data_ptr<double>();
  auto* const of_together = of_alone + options.rounds;
  for (int round = 0; round < options.rounds; ++round) {
    host.barrier().wait();
    of_alone[round] = world.rank() == 0 ? time(alone, count) : 0;
    host.barrier().wait();
    of_together[round] = time(together, count);
  }
  const Load load = meter.read(world.node());
  host.broadcast(times).wait();

  const at::Tensor mine = at::empty({load_fields}, at::kDouble);
  std::memcpy(mine.mutable_data_ptr(), &load, sizeof load);
  const at::Tensor all = at::empty({world.size() * load_fields}, at::kDouble);
  host.all_gather(all, mine).wait();
  std::vector<Load> loads(static_cast<std::size_t>(world.size()));
  std::memcpy(loads.data(), all.const_data_ptr(), loads.size() * sizeof(Load));
  const auto rounds = static_cast<std::size_t>(options.rounds);
  return efficiency_of({of_alone, rounds}, {of_together, rounds}, other_load(loads));
}

std::string to_text(const Efficiency& efficiency, int ranks) {
  if (!efficiency.reliable()) {
    return detail::concat("efficiency not measured reliably: ", efficiency.doubt,
                          "; measure again when the machine is idle");
  }
  using detail::fixed;
  detail::TextStream out;
  out << "efficiency " << fixed(100 * efficiency.median, 1) << " % ("
      << fixed(100 * efficiency.least, 1) << " to " << fixed(100 * efficiency.most, 1) << " over "
      << detail::plural(efficiency.rounds, "round") << "): a step takes "
      << fixed(1000 * efficiency.alone, 1) << " ms on one rank, "
      << fixed(1000 * efficiency.together, 1) << " ms on " << ranks;
  return out.str();
}

}  // namespace lockstep
