#pragma once

#include "comm/backend_request.h"

namespace lockstep::inline v0_2 {

namespace mpi {
class MpiCommunicator;
using MpiRequest = detail::BackendRequest<MpiCommunicator>;
}  // namespace mpi

extern template class detail::BackendRequest<mpi::MpiCommunicator>;

}  // namespace lockstep
