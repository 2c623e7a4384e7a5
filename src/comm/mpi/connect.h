#pragma once

#include "comm/mpi/mpi_communicator.h"

namespace lockstep::inline v0_2::mpi {

/// Lets the ranks of a world of several hosts watch one another from here on, over connections of
/// their own to rank 0. Every rank calls it, once. Throws: on every rank, CommError and
/// TimeoutError of what kept them from meeting.
void connect_hosts(MpiCommunicator& world);

}  // namespace lockstep::mpi
