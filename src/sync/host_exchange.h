#pragma once

#include <functional>
#include <memory>

#include "lockstep/exchange.h"

namespace lockstep::inline v0_2::detail {

/// The exchange that make() creates for a bucket on the CPU. For strategies whose kernels are for
/// the CPU. If the bucket is on a device, make() gets a bucket on the host, and each step copies
/// the values to the host and the result back. It waits for the device twice, for the two copies.
std::unique_ptr<Exchange> exchange_on_cpu(
    const Bucket& bucket, const std::function<std::unique_ptr<Exchange>(const Bucket&)>& make);

}  // namespace lockstep::detail
