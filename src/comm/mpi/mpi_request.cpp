#include "comm/mpi/mpi_request.h"

#include "comm/mpi/mpi_communicator.h"

template class lockstep::detail::BackendRequest<lockstep::mpi::MpiCommunicator>;
