#pragma once

#include "tests/simulation/scenario.h"
#include "tests/simulation/simulated_files.h"
#include "tests/simulation/simulated_mpi.h"
#include "tests/simulation/simulated_rank.h"

namespace lockstep::testing {

/// The times of an attempt's fault, and its effects so far.
struct FaultRecord {
  bool has_begun = false;
  bool disturbed = false;       ///< the fault or one of the disturbances has begun
  bool all_had_joined = false;  ///< all ranks had joined their world before
  Time begin{};
  Time end{};                   ///< of a freeze or cut; of another fault, its begin
  int other_side = 0;           ///< of FaultKind::reset: the rank at the other side
  bool is_of_messages = false;  ///< whether messages use the connection that breaks
};

/// One attempt to run a job: its processes, its fault, and how its ranks have ended.
class Attempt {
 public:
  /// Starts all ranks.
  Attempt(SimulatedKernel& kernel, const Scenario& scenario, bool with_fault)
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

  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  const Scenario& scenario() const { return scenario_; }
  SimulatedProcess& process(int rank) { return job_.process(rank); }
  const RankOutcome& outcome(int rank) const { return outcomes_[static_cast<std::size_t>(rank)]; }
  /// Whether some rank is in this state.
  bool any(RankOutcome::State state) const {
    return std::ranges::find(outcomes_, state, &RankOutcome::state) != outcomes_.end();
  }

  bool has_fault() const { return with_fault_ && scenario_.fault.kind != FaultKind::none; }
  const FaultRecord& fault() const { return fault_; }

  /// Whether the launcher could reach this rank's process: it is not frozen nor cut off.
  bool reachable(int rank) {
    auto& one = process(rank);
    if (one.frozen()) return false;
    auto& network = kernel_.network();
    for (int other = 0; other < network.hosts(); ++other) {
      if (network.is_cut(one.host(), other) || network.is_cut(other, one.host())) return false;
    }
    return true;
  }

  /// Whether no reachable process runs.
  bool over() {
    for (int rank = 0; rank < scenario_.ranks; ++rank) {
      if (!process(rank).over() && reachable(rank)) return false;
    }
    return true;
  }

 private:
  void begin_fault() {
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

  void disturb(const Fault& disturbance) {
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

  void note_fault(Time duration) {
    fault_.has_begun = fault_.disturbed = true;
    fault_.all_had_joined = std::ranges::all_of(outcomes_, &RankOutcome::created);
    fault_.begin = kernel_.scheduler().now();
    fault_.end = fault_.begin + duration;
    kernel_.scheduler().trace(name(scenario_.fault.kind), scenario_.fault.rank);
  }

  void freeze(int rank, Time duration) {
    auto& frozen = process(rank);
    frozen.freeze();
    if (duration == forever) return;
    kernel_.scheduler().after(duration, [this, &frozen] { kernel_.thaw(frozen); });
  }

  void cut(int host, bool both_ways, Time duration) {
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

  /// The connections between two ranks, first those of Control.
  std::vector<std::shared_ptr<SimulatedConnection>> connections(int rank, int other) {
    std::vector<std::shared_ptr<SimulatedConnection>> found;
    for (const auto& [descriptor, file] : process(rank).files()) {
      const auto connection = std::dynamic_pointer_cast<SimulatedConnection>(file);
      if (connection == nullptr || connection->peer() == nullptr) continue;
      if (&connection->peer()->process() == &process(other)) found.push_back(connection);
    }
    std::ranges::sort(found, {}, [](const auto& one) { return one->client_port(); });
    return found;
  }

  /// Breaks a connection of this rank. False if there is none.
  bool break_connection(int rank) {
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

  /// Breaks the last connection of these ranks while the lower one awaits one of a third rank.
  void disturb_connection(int rank, int lower) {
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

  void reset(SimulatedConnection& connection, bool one_side) {
    const int error = kernel_.random().chance(50) ? ECONNRESET : ETIMEDOUT;
    if (one_side) {
      connection.reset(error);
    } else {
      connection.fail(error);
    }
  }

  int host(int rank) const { return scenario_.hosts[static_cast<std::size_t>(rank)]; }

  SimulatedKernel& kernel_;
  const Scenario& scenario_;
  bool with_fault_;
  SimulatedMpiJob job_;
  SimulatedMeeting meeting_;
  std::vector<RankOutcome> outcomes_;
  FaultRecord fault_;
};

/// Checks the promises of Lockstep for an attempt. Without a failure, every rank succeeds with
/// correct results. Otherwise every rank gets an error in time. Its first cause is the same on all
/// ranks and names a rank at fault. Returns the first violation; empty if there is none.
std::string broken_promise(Attempt& attempt);

/// The result of a simulated world.
struct Verdict {
  std::string violation;    ///< empty if every promise was kept
  std::uint64_t trace = 0;  ///< the hash of all events
  std::uint64_t events = 0;
  bool faulty = false;  ///< whether the fault has happened
};

/// Runs a world, and its second attempt if it is restarted, and checks what Lockstep promises.
Verdict run_world(const Scenario& scenario, bool prints_trace = false);

}  // namespace lockstep::testing
