#pragma once

#include <optional>

#include "comm/hierarchical/host_topology.h"
#include "lockstep/group.h"

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

}  // namespace lockstep::detail
