#pragma once

#include <functional>
#include <memory>

#include "lockstep/exchange.h"

namespace lockstep::inline v0_2::detail {

/// Whether the bucket lies on another device than the CPU.
inline bool is_on_device(const Bucket& bucket) { return !bucket.values().is_cpu(); }

/// An exchange of a bucket on a device, in memory of the host: it copies the values to the host,
/// runs the exchange that make() creates for a bucket there, and copies the result back. For
/// strategies whose kernels are for the CPU. Each step waits for the device twice, for the two
/// copies.
std::unique_ptr<Exchange> exchange_on_host(
    const Bucket& bucket, const std::function<std::unique_ptr<Exchange>(const Bucket&)>& make);

}  // namespace lockstep::detail
