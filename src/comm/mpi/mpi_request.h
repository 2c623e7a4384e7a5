#pragma once

#include "comm/backend_request.h"

namespace lockstep::inline v0_2::mpi {

class MpiCommunicator;
using MpiRequest = detail::GroupRequest<MpiCommunicator>;

}  // namespace lockstep::mpi
