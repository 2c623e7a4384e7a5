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
  for (const auto& one : scenario.disturbances) {
    process(one.rank).at_call_after_socket(one.call, [this, &one] { disturb(one); });
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
      return kernel_.lose_power(host(fault.rank));
    case FaultKind::freeze:
    case FaultKind::short_freeze:
      note_fault(fault.duration);
      return freeze(fault.rank, fault.duration);
    case FaultKind::freeze_for_ever:
      note_fault(Time(0));
      return freeze(fault.rank, forever);
    case FaultKind::cut:
    case FaultKind::short_cut:
      note_fault(fault.duration);
      return cut(host(fault.rank), true, fault.duration);
    case FaultKind::cut_one_way:
      note_fault(fault.duration);
      return cut(host(fault.rank), false, fault.duration);
    case FaultKind::reset:
      if (reset_connection(fault.rank)) note_fault(Time(0));
      return;
    default:
      return;  // in the program, or by another process
  }
}

void Attempt::disturb(const Fault& disturbance) {
  const int rank = disturbance.rank;
  kernel_.scheduler().trace(name(disturbance.kind), rank);
  if (disturbance.kind == FaultKind::reset) {
    // When all have joined, a reset is a failure.
    if (awaits_another(std::max(rank, 1)) && reset_connection(rank, kernel_.random().chance(50)))
      disturbed_ = true;
    return;
  }
  disturbed_ = true;
  if (disturbance.kind == FaultKind::freeze) {
    freeze(rank, disturbance.duration);
  } else {
    cut(host(rank), disturbance.kind == FaultKind::cut, disturbance.duration);
  }
}

bool Attempt::awaits_another(int rank) {
  for (int other = 1; other < scenario_.ranks; ++other) {
    if (other == rank) continue;
    const bool connects = std::ranges::any_of(process(other).files(), [](const auto& file) {
      const auto connection = std::dynamic_pointer_cast<SimulatedConnection>(file.second);
      return connection != nullptr && connection->peer() != nullptr;
    });
    if (!connects && !outcomes_[static_cast<std::size_t>(other)].created) return true;
  }
  return false;
}

void Attempt::freeze(int rank, Time duration) {
  auto& frozen = process(rank);
  kernel_.freeze(frozen);
  if (duration == forever) return;
  kernel_.scheduler().after(duration, [this, &frozen] { kernel_.thaw(frozen); });
}

void Attempt::cut(int host, bool both_ways, Time duration) {
  auto& network = kernel_.network();
  for (int other = 0; other < network.hosts(); ++other) {
    if (other == host) continue;
    network.cut(host, other);
    if (both_ways) network.cut(other, host);
  }
  kernel_.scheduler().after(duration, [host, &network] {
    for (int other = 0; other < network.hosts(); ++other) {
      network.heal(host, other);
      network.heal(other, host);
    }
  });
}

bool Attempt::reset_connection(int rank, bool one_side) {
  // Rank 0 has a connection to each other rank.
  const auto* other = &process(std::max(rank, 1));
  for (const auto& [descriptor, file] : process(0).files()) {
    const auto connection = std::dynamic_pointer_cast<SimulatedConnection>(file);
    if (connection == nullptr || connection->peer() == nullptr) continue;
    if (&connection->peer()->process() != other) continue;
    const int error = kernel_.random().chance(50) ? ECONNRESET : ETIMEDOUT;
    if (one_side) {
      connection->reset(error);
    } else {
      connection->fail(error);
    }
    return true;
  }
  return false;
}

}  // namespace lockstep::testing
