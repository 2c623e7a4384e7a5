#include "lockstep/comm/mpi/in_flight.h"

#include "lockstep/comm/mpi/mpi_communicator.h"

template class lockstep::detail::InFlightIn<lockstep::mpi::MpiCommunicator>;
