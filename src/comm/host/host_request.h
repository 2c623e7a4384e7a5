#pragma once

#include "comm/backend_communicator.h"

namespace lockstep::inline v0_2::host {

class HostCommunicator;
using HostRequest = detail::GroupRequest<HostCommunicator>;

}  // namespace lockstep::host
