#include "lockstep/comm/host/in_flight.h"

#include "lockstep/comm/host/host_communicator.h"

template class lockstep::detail::InFlightIn<lockstep::host::HostCommunicator>;
