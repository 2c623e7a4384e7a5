#pragma once

#include <memory>

#include "lockstep/sync/bucket.h"
#include "lockstep/sync/exchange.h"
#include "lockstep/sync/host_groups.h"
#include "lockstep/sync/strategy.h"

namespace lockstep::detail {

/// The strategy's exchange of a bucket where hosts hold several ranks: ranks of a host sum in
/// memory, the carriers of each part of the bucket exchange the sums by the strategy, as one rank a
/// host, and ranks of a host share the result. values[i] is the mean over all ranks as the strategy
/// makes it of the hosts' parts of the mean. What is not sent is kept by carriers, of the
/// parameters that they carry. Throws: InvalidArgument as the strategy does.
std::unique_ptr<Exchange> between_hosts(const Strategy& strategy, const Bucket& bucket,
                                        const HostGroups& hosts);

}  // namespace lockstep::detail
