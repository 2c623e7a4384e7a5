#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

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
  Attempt(SimulatedKernel& kernel, const Scenario& scenario, bool with_fault);
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
  bool reachable(int rank);
  /// Whether no reachable process runs.
  bool over();

 private:
  void begin_fault();
  void disturb(const Fault& disturbance);
  void note_fault(Time duration);
  void freeze(int rank, Time duration);
  void cut(int host, bool both_ways, Time duration);
  /// The connections between two ranks, first those of Control.
  std::vector<std::shared_ptr<SimulatedConnection>> connections(int rank, int other);
  /// Breaks a connection of this rank. False if there is none.
  bool break_connection(int rank);
  /// Breaks the last connection of these ranks while the lower one awaits one of a third rank.
  void disturb_connection(int rank, int lower);
  void reset(SimulatedConnection& connection, bool one_side);
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
