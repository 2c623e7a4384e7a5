#include "comm/mpi/mpi.h"
#include "lockstep/error.h"

// A build without MPI links these functions instead of the backend.

namespace lockstep::inline v0_2::mpi {

std::string available() { return "built without MPI: configure with -DLOCKSTEP_WITH_MPI=ON"; }

std::string version() { return {}; }

bool by_thread(const messages::Options&) { throw BackendUnavailable("mpi: " + available()); }

std::shared_ptr<Communicator> create(const messages::Options&) {
  throw BackendUnavailable("mpi: " + available());
}

}  // namespace lockstep::mpi
