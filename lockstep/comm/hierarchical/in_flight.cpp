#include "lockstep/comm/hierarchical/in_flight.h"

#include "lockstep/comm/hierarchical/hierarchical_communicator.h"

template class lockstep::detail::InFlightIn<lockstep::hierarchical::HierarchicalCommunicator>;
