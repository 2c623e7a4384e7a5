#pragma once

#include "lockstep/comm/in_flight.h"

namespace lockstep {

namespace mpi {
class MpiCommunicator;
using InFlight = detail::InFlightIn<MpiCommunicator>;
}  // namespace mpi

extern template class detail::InFlightIn<mpi::MpiCommunicator>;

}  // namespace lockstep
