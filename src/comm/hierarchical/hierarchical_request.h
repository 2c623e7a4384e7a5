#pragma once

#include "comm/backend_request.h"

namespace lockstep {

namespace hierarchical {
class HierarchicalCommunicator;
using HierarchicalRequest = detail::BackendRequest<HierarchicalCommunicator>;
}  // namespace hierarchical

extern template class detail::BackendRequest<hierarchical::HierarchicalCommunicator>;

}  // namespace lockstep
