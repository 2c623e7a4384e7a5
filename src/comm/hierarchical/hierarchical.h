#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/host/host.h"
#include "comm/mpi/mpi.h"

namespace lockstep::inline v0_2::hierarchical {

struct Options {
  mpi::Options between_hosts = {};
  host::Options inside = {};
};

/// This process's communicator over all processes of its MPI. An all_reduce of float32 or float64
/// is summed inside each host in shared memory. Then each shard leader exchanges its slice between
/// hosts, and each host shares the result in memory. Sums are in the order of ranks inside a host,
/// then in the order of hosts.
/// All other operations go over MPI, or over the memory of one host. Where all ranks are on one
/// host, or each on one of its own, this is that backend alone. Called once by every process;
/// returns when all have. Throws: as mpi::create() and host::meet().
std::shared_ptr<Communicator> create(const Options& options);

}  // namespace lockstep::hierarchical
