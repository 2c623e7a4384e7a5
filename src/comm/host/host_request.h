#pragma once

#include "comm/backend_request.h"

namespace lockstep::inline v0_2::host {

class HostCommunicator;
using HostRequest = detail::GroupRequest<HostCommunicator>;

}  // namespace lockstep::host
