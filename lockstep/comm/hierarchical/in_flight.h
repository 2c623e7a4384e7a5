#pragma once

#include "lockstep/comm/in_flight.h"

namespace lockstep {

namespace hierarchical {
class HierarchicalCommunicator;
using InFlight = detail::InFlightIn<HierarchicalCommunicator>;
}  // namespace hierarchical

extern template class detail::InFlightIn<hierarchical::HierarchicalCommunicator>;

}  // namespace lockstep
