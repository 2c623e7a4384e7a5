#pragma once

#include "comm/backend_request.h"

namespace lockstep::inline v0_2 {

namespace hierarchical {
class HierarchicalCommunicator;
using HierarchicalRequest = detail::BackendRequest<HierarchicalCommunicator>;
}  // namespace hierarchical

extern template class detail::BackendRequest<hierarchical::HierarchicalCommunicator>;

}  // namespace lockstep
