#pragma once

#include <memory>
#include <optional>

#include "comm/hierarchical/host_topology.h"
#include "lockstep/exchange.h"
#include "lockstep/group.h"
#include "lockstep/strategy.h"

namespace lockstep::inline v0_2::detail {

/// The stage groups of a strategy that runs between hosts, where a host holds several ranks.
struct HostGroups {
  hierarchical::HostTopology topology;
  Group intra_node;  ///< the ranks of this host
  /// The leaders of this rank's shard, by host; none on a rank that leads none.
  std::optional<Group> inter_node;

  /// None where all ranks are on one host, or each on one of its own.
  /// Ranks: all of the group.
  static std::optional<HostGroups> of(const Group& group);
};

/// The strategy's exchange of a bucket where hosts hold several ranks. Ranks of a host sum in
/// memory. The leaders of each shard of the bucket exchange the sums by the strategy, as one rank a
/// host. Then the ranks of a host share the result. values[i] is the mean over all ranks as the
/// strategy makes it of the hosts' parts of the mean.
/// A shard leader keeps the residuals of the parameters in its shard. Throws: InvalidArgument as
/// the strategy does.
std::unique_ptr<Exchange> between_hosts(const Strategy& strategy, const Bucket& bucket,
                                        const HostGroups& hosts);

}  // namespace lockstep::detail
