#pragma once

#include "lockstep/comm/in_flight.h"

namespace lockstep {

namespace host {
class HostCommunicator;
using InFlight = detail::InFlightIn<HostCommunicator>;
}  // namespace host

extern template class detail::InFlightIn<host::HostCommunicator>;

}  // namespace lockstep
