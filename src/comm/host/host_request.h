#pragma once

#include "comm/backend_request.h"

namespace lockstep::inline v0_2 {

namespace host {
class HostCommunicator;
using HostRequest = detail::BackendRequest<HostCommunicator>;
}  // namespace host

extern template class detail::BackendRequest<host::HostCommunicator>;

}  // namespace lockstep
