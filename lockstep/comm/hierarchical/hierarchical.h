#pragma once

#include <memory>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/host/host.h"
#include "lockstep/comm/mpi/mpi.h"

namespace lockstep::hierarchical {

struct Options {
  mpi::Options between_hosts = {};
  host::Options inside = {};
};

/// This process's communicator over all processes that its MPI knows: an all_reduce of float32 or
/// float64 is summed inside each host in shared memory, then every local rank carries a slice of
/// its own between hosts, and the result is shared inside the host; sums are in the order of ranks
/// inside a host, then in the order of hosts. Everything else goes over MPI, or within one host's
/// memory. Where all ranks are on one host, or each on one of its own, it is that backend alone.
/// Called once by every process; returns when all have. Throws: as mpi::create() and host::meet().
std::shared_ptr<Communicator> create(const Options& options);

}  // namespace lockstep::hierarchical
