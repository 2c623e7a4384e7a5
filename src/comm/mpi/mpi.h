#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/messages/options.h"

namespace lockstep::inline v0_2::mpi {

/// Empty if the backend is part of this build, else the reason.
std::string available();

/// The version text of the MPI library of this build, such as "Open MPI v4.1.4"; empty without MPI.
std::string version();

/// Whether a progress thread is used with these options. Initialises MPI.
/// Throws: BackendUnavailable if the options require a thread and MPI does not allow one.
bool by_thread(const messages::Options& options);

/// This process's communicator over all processes of MPI_COMM_WORLD. Every process calls it once;
/// returns when all have. If the program has initialised MPI, the program must also finalise it.
/// Otherwise Lockstep initialises MPI, and finalises it at exit. MPI_Init has no timeout: if it
/// waits longer than options.timeout, the process exits with a line on stderr.
/// Throws: BackendUnavailable if MPI is not in this build; if the program initialised MPI with
/// MPI_THREAD_SINGLE, or with a lower thread level than the progress mode needs; or if MPI has
/// another number of processes than expected. InvalidArgument if ranks have different algorithms.
/// CommError and TimeoutError as a collective does.
std::shared_ptr<Communicator> create(const messages::Options& options);

}  // namespace lockstep::mpi
