#pragma once

#include "comm/mpi/mpi.h"
#include "lockstep/types.h"
#include "tests/simulation/simulated_kernel.h"

namespace lockstep::testing {

/// One operation of every rank.
struct ScenarioStep {
  Collective collective = Collective::barrier;
  DType dtype = DType::i32;
  ReduceOp reduce = ReduceOp::sum;
  std::size_t count = 0;
  int root = 0;
  bool in_split = false;  ///< in the group of the ranks of equal parity
  bool overlaps = false;  ///< the next operation begins before this one is waited for
  Time work{};            ///< time that each rank computes before it, at most
};

/// The kinds of faults of a world.
enum class FaultKind {
  none,
  kill,        ///< a rank's process ends, as by SIGKILL
  lose_power,  ///< a host is gone, and closes no connection
  freeze,      ///< a rank is stopped for longer than the heartbeat limit
  freeze_for_ever,
  short_freeze,   ///< a rank is stopped for less than half of the heartbeat limit: no failure
  cut,            ///< a host is cut off in both directions
  cut_one_way,    ///< packets of a host are lost, those to it arrive
  short_cut,      ///< for less than half of the heartbeat limit: no failure
  reset,          ///< a control connection breaks, or a stream of messages over TCP
  program_error,  ///< a rank's program throws
  mismatch,       ///< a rank issues another operation
  hang,           ///< a rank never issues an operation
  leave,          ///< a rank leaves before an operation
  stranger        ///< another program connects to rank 0: no failure
};

std::string_view name(FaultKind kind);
/// Whether the world must succeed in spite of it.
bool is_harmless(FaultKind kind);
/// Whether ranks must detect it by their control connections, and not by the timeout of an
/// operation.
bool is_seen_by_control(FaultKind kind);

/// A fault with its random values.
struct Fault {
  FaultKind kind = FaultKind::none;
  int rank = 0;            ///< the rank at fault
  std::uint64_t call = 0;  ///< begins at this call of the rank's process; of
                           ///< Scenario::disturbances, counted from its first socket
  Time duration{};         ///< of freezes and cuts
  std::size_t step = 0;    ///< of faults in a rank's program
};

/// A random world: its ranks, its program and its fault. The same for the same seed.
struct Scenario {
  /// joining: with disturbances while ranks join, and no other fault.
  static Scenario make(std::uint64_t seed, bool joining = false);

  std::uint64_t seed = 0;
  /// The ranks exchange messages over the library's TCP, not over the simulated MPI.
  bool over_tcp = false;
  bool known_port = false;  ///< over TCP, rank 0 listens on a port that all ranks know
  int ranks = 1;
  std::vector<int> hosts = {};  ///< of each rank
  SimulatedKernel::Settings kernel = {};
  std::size_t eager_bytes = 0;  ///< longest message that MPI sends without waiting for a receiver
  messages::Algorithm algorithm = messages::Algorithm::automatic;
  bool progress_thread = false;
  std::chrono::milliseconds timeout{};
  std::chrono::milliseconds heartbeat{};
  std::vector<ScenarioStep> steps = {};
  bool splits = false;
  Fault fault = {};
  /// Freezes, cuts and resets while ranks join, in spite of which the world must succeed.
  std::vector<Fault> disturbances = {};
  bool restarts = false;  ///< the job is started again after the failure

  std::string text() const;
};

/// How long a rank does not issue its operation, for FaultKind::hang.
inline Time hang_time(const Scenario& scenario) { return 3 * scenario.timeout; }

}  // namespace lockstep::testing
