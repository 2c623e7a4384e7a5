#pragma once

#include "comm/backend_request.h"

namespace lockstep::inline v0_2::hierarchical {

class HierarchicalCommunicator;
using HierarchicalRequest = detail::GroupRequest<HierarchicalCommunicator>;

}  // namespace lockstep::hierarchical
