#include "tests/simulation/attempt.h"

#include <cerrno>

#include "tests/simulation/simulated_files.h"

namespace lockstep::testing {

Attempt::Attempt(SimulatedKernel& kernel, const Scenario& scenario, bool with_fault)
    : kernel_(kernel),
      scenario_(scenario),
      with_fault_(with_fault),
      job_(kernel, scenario.eager_bytes),
      outcomes_(static_cast<std::size_t>(scenario.ranks)) {
  for (int rank = 0; rank < scenario.ranks; ++rank) {
    job_.add(kernel.start(scenario.hosts[static_cast<std::size_t>(rank)], [this, rank] {
      run_rank(scenario_, rank, with_fault_, meeting_, outcomes_[static_cast<std::size_t>(rank)],
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
  fault_.has_begun = fault_.disturbed = true;
  fault_.all_had_joined = std::ranges::all_of(outcomes_, &RankOutcome::created);
  fault_.begin = kernel_.scheduler().now();
  fault_.end = fault_.begin + duration;
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
      if (break_connection(fault.rank)) note_fault(Time(0));
      return;
    default:
      return;  // in the program, or by another process
  }
}

void Attempt::disturb(const Fault& disturbance) {
  const int rank = disturbance.rank;
  kernel_.scheduler().trace(name(disturbance.kind), rank);
  if (disturbance.kind == FaultKind::reset) {
    const int higher = std::max(rank, 1);
    return disturb_connection(higher, scenario_.over_tcp ? kernel_.random().below(higher) : 0);
  }
  fault_.disturbed = true;
  if (disturbance.kind == FaultKind::freeze) {
    freeze(rank, disturbance.duration);
  } else {
    cut(host(rank), disturbance.kind == FaultKind::cut, disturbance.duration);
  }
}

std::vector<std::shared_ptr<SimulatedConnection>> Attempt::connections(int rank, int other) {
  std::vector<std::shared_ptr<SimulatedConnection>> found;
  for (const auto& [descriptor, file] : process(rank).files()) {
    const auto connection = std::dynamic_pointer_cast<SimulatedConnection>(file);
    if (connection == nullptr || connection->peer() == nullptr) continue;
    if (&connection->peer()->process() == &process(other)) found.push_back(connection);
  }
  std::ranges::sort(found, {}, [](const auto& one) { return one->client_port(); });
  return found;
}

void Attempt::freeze(int rank, Time duration) {
  auto& frozen = process(rank);
  frozen.freeze();
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

bool Attempt::break_connection(int rank) {
  std::vector<int> others;
  for (int other = 0; other < scenario_.ranks; ++other) {
    const bool has_control = rank == 0 ? other == 1 : other == 0;
    const bool chosen = scenario_.over_tcp || has_control;
    if (chosen && !connections(rank, other).empty()) others.push_back(other);
  }
  if (others.empty()) return false;
  auto& random = kernel_.random();
  fault_.other_side = others.size() == 1 ? others.front() : others[random.bits() % others.size()];
  const auto found = connections(rank, fault_.other_side);
  const bool has_control = rank == 0 || fault_.other_side == 0;
  fault_.is_of_messages = found.size() > 1 ? random.chance(50) : !has_control;
  reset(fault_.is_of_messages ? *found.back() : *found.front(), false);
  return true;
}

void Attempt::disturb_connection(int rank, int lower) {
  // When all have joined, a reset is a failure.
  const auto found = connections(rank, lower);
  for (int other = lower + 1; other < scenario_.ranks; ++other) {
    const bool joins = !outcomes_[static_cast<std::size_t>(other)].created;
    if (other == rank || !joins || connections(other, lower).size() >= found.size()) continue;
    fault_.disturbed = true;
    kernel_.scheduler().trace("resets", rank, lower);
    return reset(*found.back()->peer(), kernel_.random().chance(50));
  }
}

void Attempt::reset(SimulatedConnection& connection, bool one_side) {
  const int error = kernel_.random().chance(50) ? ECONNRESET : ETIMEDOUT;
  if (one_side) {
    connection.reset(error);
  } else {
    connection.fail(error);
  }
}

}  // namespace lockstep::testing
