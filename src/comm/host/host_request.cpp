#include "comm/host/host_request.h"

#include "comm/host/host_communicator.h"

template class lockstep::detail::BackendRequest<lockstep::host::HostCommunicator>;
