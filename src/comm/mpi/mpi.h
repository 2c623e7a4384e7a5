#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

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
  int threads_per_rank = 1;  ///< compute threads of each rank; while all fit the cores of a host, a
                             ///< waiting rank spins long
  int cores = 0;             ///< cores that a host's ranks share; 0 takes the machine's
  Algorithm algorithm = Algorithm::automatic;       ///< the same on all ranks
  ProgressMode progress = ProgressMode::automatic;  ///< how operations advance between calls
  std::string host = {};  ///< what this rank's host is known by; empty finds that out
  /// The network interface by which hosts watch one another; empty leaves that to the routes.
  std::string interface = {};
  std::chrono::milliseconds heartbeat = control::default_heartbeat;  ///< longest silence of a host
  int expected_size = 0;  ///< ranks that the launcher's variables speak of; 0 if they do not
};

/// Empty where the backend is part of this build, else why it is not.
std::string available();

/// The MPI of this build, as its library reports it: "Open MPI v4.1.4"; empty without one.
std::string version();

/// Whether a thread makes progress by these options. Joins MPI.
/// Throws: BackendUnavailable when a thread is asked for and MPI allows none.
bool by_thread(const Options& options);

/// Lets a thread make progress from here on, in a world that create() made with ProgressMode::wait.
/// Throws: CommError when the process may start no more threads.
void start_thread(Communicator& world);

/// This process's communicator over all processes of its MPI. Joins an MPI that the program has
/// initialised and does not finalise it. Otherwise initialises MPI, which then ends with the
/// process. Called once by every process; returns when all have. MPI_Init cannot give up: where it
/// waits longer than the timeout for a process, the waiting processes end with a line on stderr.
/// Throws: BackendUnavailable when not in this build; BackendUnavailable when the program
/// initialised MPI with MPI_THREAD_SINGLE, or with a lower thread level than the progress mode
/// needs; BackendUnavailable when MPI has another number of processes than expected;
/// InvalidArgument when ranks were given different algorithms; CommError and TimeoutError as a
/// collective does.
std::shared_ptr<Communicator> create(const Options& options);

}  // namespace lockstep::mpi
