#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/control/settings.h"
#include "lockstep/core/progress_mode.h"

namespace lockstep {
struct Placement;
}

namespace lockstep::mpi {

/// How an all_reduce moves its bytes. docs/algorithms.md has steps and bytes of both.
enum class Algorithm {
  automatic,
  direct,  ///< each rank sums a slice that it hears from all: fewest steps
  ring     ///< partial sums pass from rank to rank: two partners however many ranks there are, but
           ///< each slice's sum begins at another rank
};

std::string_view name(Algorithm algorithm);

/// The algorithm of a name: "auto", "direct" or "ring".
/// Throws: InvalidArgument listing the valid names.
Algorithm parse_algorithm(std::string_view text);

/// What automatic comes to for an all_reduce between ranks so placed, by lockstep/comm/cost.h.
/// Equal arguments give equal answers.
Algorithm cheapest(const Placement& placement, std::size_t bytes);

struct Options {
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  ///< longest wait of one operation
  int threads_per_rank = 1;  ///< compute threads of each rank; while all fit the cores of a host, a
                             ///< waiting rank spins long
  int cores = 0;             ///< cores that a host's ranks share; 0 takes the machine's
  Algorithm algorithm = Algorithm::automatic;       ///< the same on all ranks
  ProgressMode progress = ProgressMode::automatic;  ///< who advances what nobody waits for
  std::string host = {};  ///< what this rank's host is known by; empty finds that out
  /// The network interface by which hosts watch one another; empty leaves that to the routes.
  std::string interface = {};
  std::chrono::milliseconds heartbeat = control::default_heartbeat;  ///< longest silence of a host
  int expected_size = 0;  ///< ranks that the launcher's variables speak of; 0 if they do not
};

/// Empty where the backend is part of this build, else why it is not.
std::string available();

/// What MPI this build uses, as its library tells: "Open MPI v4.1.4"; empty without one.
std::string version();

/// Whether a thread makes progress by these options. Joins MPI.
/// Throws: BackendUnavailable when a thread is asked for and MPI allows none.
bool by_thread(const Options& options);

/// Lets a thread make progress from here on, in a world that create() made with ProgressMode::wait.
/// Throws: CommError when the process may start no more threads.
void start_thread(Communicator& world);

/// This process's communicator over all processes that its MPI knows. Joins an MPI that the program
/// has initialised and leaves it alone at the end; else begins MPI, which then ends with the
/// process. Called once by every process; returns when all have. MPI_Init cannot give up: where it
/// waits longer than the timeout for a process, those that wait end with a line on stderr. Throws:
/// BackendUnavailable when not in this build, when the program initialised MPI for one thread only
/// or for fewer than the progress asks for, and when MPI knows other than the expected number of
/// processes; InvalidArgument when ranks were told different algorithms; CommError and TimeoutError
/// as a collective does.
std::shared_ptr<Communicator> create(const Options& options);

}  // namespace lockstep::mpi
