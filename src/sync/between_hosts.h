#pragma once

#include <memory>
#include <optional>

#include "comm/hierarchical/host_topology.h"
#include "lockstep/exchange.h"
#include "lockstep/group.h"
#include "lockstep/strategy.h"

namespace lockstep::inline v0_2::detail {

/// The stage groups of a strategy that runs between hosts with several ranks each.
struct HostGroups {
  hierarchical::HostTopology topology;
  Group intra_node;  ///< the ranks of this host
  /// The leaders of this rank's shard on all hosts; nullopt on a rank that leads no shard.
  std::optional<Group> inter_node;

  /// nullopt if all ranks are on one host, or each is alone on its host.
  /// Ranks: all of the group.
  static std::optional<HostGroups> of(const Group& group);
};

/// Makes the strategy's exchange of a bucket between hosts with several ranks each:
///
/// 1. The ranks of a host reduce-scatter the bucket in shared memory.
/// 2. The leaders of each shard, one rank per host, exchange the shard with the strategy.
/// 3. The ranks of a host all-gather the results in shared memory.
///
/// The result is the strategy's mean over hosts, each of which contributes its part of the mean. A
/// shard leader keeps the residuals of the parameters in its shard.
/// Throws: InvalidArgument as the strategy does.
std::unique_ptr<Exchange> between_hosts(const Strategy& strategy, const Bucket& bucket,
                                        const HostGroups& hosts);

}  // namespace lockstep::detail
