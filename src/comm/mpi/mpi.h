#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/control/offer.h"
#include "comm/messages/algorithm.h"
#include "core/environment.h"

namespace lockstep::inline v0_2::mpi {

using messages::Algorithm;
using messages::cheapest;
using messages::name;
using messages::parse_algorithm;

struct Options {
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  ///< longest wait of one operation
  int threads_per_rank = 1;  ///< compute threads of each rank; a waiting rank spins if all threads
                             ///< of the host have a core
  int cores = 0;             ///< cores that a host's ranks share; 0 for all of the machine
  Algorithm algorithm = Algorithm::automatic;       ///< the same on all ranks
  ProgressMode progress = ProgressMode::automatic;  ///< how operations advance between calls
  std::string host = {};  ///< host id of this rank; empty: determined by this_host()
  /// The network interface of the control connections between hosts; empty: the system's routes
  /// select it.
  std::string interface = {};
  std::chrono::milliseconds heartbeat =
      control::default_heartbeat;  ///< longest time without a heartbeat from a host
  bool records = true;             ///< keep a flight record; false for the part of another world
  int expected_size = 0;  ///< number of ranks according to the launcher's variables; 0 if unknown
};

/// Empty if the backend is part of this build, else the reason.
std::string available();

/// The version text of the MPI library of this build, such as "Open MPI v4.1.4"; empty without MPI.
std::string version();

/// Whether a progress thread is used with these options. Initialises MPI.
/// Throws: BackendUnavailable if the options require a thread and MPI does not allow one.
bool by_thread(const Options& options);

/// Starts the progress thread of a world that create() made with ProgressMode::wait.
/// Throws: CommError if the process cannot start another thread.
void start_thread(Communicator& world);

/// Begins to record the operations of a world that create() made without records.
void record_operations(Communicator& world);

/// The number of a group of some ranks in which they agree on the number of another. A rank is in
/// one such group at a time.
inline constexpr int agreement_group = 1;

/// The highest number of the groups over MPI that this rank is or was a member of.
/// world: a communicator over MPI.
int last_group(const Communicator& world);

/// The group of these ranks of a group over MPI, in this order. Only its members call it, and it
/// waits for none of them. Its failure ends the world.
/// number: the same on all members; higher than the last_group() of each, or agreement_group.
/// Throws: CommError if MPI has too few tags for this number.
std::shared_ptr<Communicator> new_group(Communicator& parent, const std::vector<int>& members,
                                        int number);

/// This process's communicator over all processes of MPI_COMM_WORLD. Every process calls it once;
/// returns when all have. If the program has initialised MPI, the program must also finalise it.
/// Otherwise Lockstep initialises MPI, and finalises it at exit. MPI_Init has no timeout: if it
/// waits longer than options.timeout, the process exits with a line on stderr.
/// Throws: BackendUnavailable if MPI is not in this build; if the program initialised MPI with
/// MPI_THREAD_SINGLE, or with a lower thread level than the progress mode needs; or if MPI has
/// another number of processes than expected. InvalidArgument if ranks have different algorithms.
/// CommError and TimeoutError as a collective does.
std::shared_ptr<Communicator> create(const Options& options);

}  // namespace lockstep::mpi
