#pragma once

#include <functional>
#include <memory>

#include "lockstep/exchange.h"

namespace lockstep::inline v0_2::detail {

/// The exchange that make() creates for a bucket on the CPU. For strategies whose kernels are for
/// the CPU. If the bucket is on a device, make() gets a bucket in pinned memory of the host, and
/// each step copies the values there and the result back, in the order of the current stream. The
/// task awaits the first copy.
std::unique_ptr<Exchange> exchange_on_cpu(
    const Bucket& bucket, const std::function<std::unique_ptr<Exchange>(const Bucket&)>& make);

}  // namespace lockstep::detail
