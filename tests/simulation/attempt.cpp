#include "tests/simulation/attempt.h"

#include <algorithm>
#include <cerrno>

#include "tests/simulation/simulated_files.h"

namespace lockstep::testing {

Attempt::Attempt(SimulatedKernel& kernel, const Scenario& scenario, bool with_fault)
    : kernel_(kernel),
      scenario_(scenario),
      with_fault_(with_fault),
      job_(kernel, scenario.eager_bytes),
      outcomes_(static_cast<std::size_t>(scenario.ranks)),
      begin_(kernel.scheduler().now()) {
  for (int rank = 0; rank < scenario.ranks; ++rank) {
    job_.add(kernel.start(scenario.hosts[static_cast<std::size_t>(rank)], [this, rank] {
      run_rank(scenario_, rank, with_fault_, outcomes_[static_cast<std::size_t>(rank)],
               [this] { note_fault(Time(0)); });
    }));
  }
  if (has_fault()) {
    process(scenario.fault.rank).at_call(scenario.fault.call, [this] { begin_fault(); });
  }
}

bool Attempt::reachable(int rank) {
  auto& one = process(rank);
  if (one.frozen()) return false;
  auto& network = kernel_.network();
  for (int other = 0; other < network.hosts(); ++other) {
    if (network.is_cut(one.host(), other) || network.is_cut(other, one.host())) return false;
  }
  return true;
}

bool Attempt::over() {
  for (int rank = 0; rank < scenario_.ranks; ++rank) {
    if (!process(rank).over() && reachable(rank)) return false;
  }
  return true;
}

void Attempt::note_fault(Time duration) {
  fault_began_ = true;
  joined_before_fault_ = std::ranges::all_of(outcomes_, &RankOutcome::created);
  fault_begin_ = kernel_.scheduler().now();
  fault_end_ = fault_begin_ + duration;
  kernel_.scheduler().trace(name(scenario_.fault.kind), scenario_.fault.rank);
}

void Attempt::begin_fault() {
  const auto& fault = scenario_.fault;
  switch (fault.kind) {
    case FaultKind::kill:
      note_fault(Time(0));
      return kernel_.kill(process(fault.rank));
    case FaultKind::lose_power:
      note_fault(Time(0));
      return kernel_.lose_power(host());
    case FaultKind::freeze:
    case FaultKind::short_freeze:
      note_fault(fault.duration);
      return freeze(fault.duration);
    case FaultKind::freeze_for_ever:
      note_fault(Time(0));
      return freeze(forever);
    case FaultKind::cut:
    case FaultKind::short_cut:
      note_fault(fault.duration);
      return cut(true, fault.duration);
    case FaultKind::cut_one_way:
      note_fault(fault.duration);
      return cut(false, fault.duration);
    case FaultKind::reset:
      return reset_connection();
    default:
      return;  // in the program, or by another process
  }
}

void Attempt::freeze(Time duration) {
  auto& frozen = process(scenario_.fault.rank);
  kernel_.freeze(frozen);
  if (duration == forever) return;
  kernel_.scheduler().after(duration, [this, &frozen] { kernel_.thaw(frozen); });
}

void Attempt::cut(bool both_ways, Time duration) {
  auto& network = kernel_.network();
  for (int other = 0; other < network.hosts(); ++other) {
    if (other == host()) continue;
    network.cut(host(), other);
    if (both_ways) network.cut(other, host());
  }
  kernel_.scheduler().after(duration, [this, &network] {
    for (int other = 0; other < network.hosts(); ++other) {
      network.heal(host(), other);
      network.heal(other, host());
    }
  });
}

void Attempt::reset_connection() {
  // Rank 0 has a connection to each other rank.
  const auto* other = &process(scenario_.fault.rank == 0 ? 1 : scenario_.fault.rank);
  for (const auto& [descriptor, file] : process(0).files()) {
    const auto connection = std::dynamic_pointer_cast<SimulatedConnection>(file);
    if (connection == nullptr || connection->peer() == nullptr) continue;
    if (&connection->peer()->process() != other) continue;
    note_fault(Time(0));
    return connection->fail(kernel_.random().chance(50) ? ECONNRESET : ETIMEDOUT);
  }
}

}  // namespace lockstep::testing
