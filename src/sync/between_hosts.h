#pragma once

#include <memory>

#include "lockstep/exchange.h"
#include "lockstep/strategy.h"
#include "sync/host_groups.h"

namespace lockstep::inline v0_2::detail {

/// The strategy's exchange of a bucket where hosts hold several ranks. Ranks of a host sum in
/// memory. The leaders of each shard of the bucket exchange the sums by the strategy, as one rank a
/// host. Then the ranks of a host share the result. values[i] is the mean over all ranks as the
/// strategy makes it of the hosts' parts of the mean.
/// A shard leader keeps the residuals of the parameters in its shard. Throws: InvalidArgument as
/// the strategy does.
std::unique_ptr<Exchange> between_hosts(const Strategy& strategy, const Bucket& bucket,
                                        const HostGroups& hosts);

}  // namespace lockstep::detail
