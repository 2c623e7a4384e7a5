#include "comm/hierarchical/hierarchical_request.h"

#include "comm/hierarchical/hierarchical_communicator.h"

template class lockstep::detail::BackendRequest<lockstep::hierarchical::HierarchicalCommunicator>;
