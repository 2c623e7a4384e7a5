#pragma once

#include <memory>

#include "lockstep/averages.h"
#include "lockstep/exchange.h"

namespace lockstep::inline v0_2::detail {

/// The exchange of topk for a bucket on a device, which selects elements there.
std::unique_ptr<Exchange> top_k_on_device(const TopK& recipe, const Bucket& bucket);

}  // namespace lockstep::detail
