#include "sync/host_groups.h"

#include <utility>

namespace lockstep::inline v0_2::detail {

std::optional<HostGroups> HostGroups::of(const Group& group) {
  auto& all = group.communicator();
  const auto topology = hierarchical::HostTopology::of(all);
  if (topology.has_one_level()) return std::nullopt;
  HostGroups groups{.topology = topology, .intra_node = group.local(), .inter_node = {}};
  if (auto leaders = topology.inter_node(all)) {
    // The leaders send the data, so the group's statistics count their operations.
    leaders->set_observer(all.observer());
    groups.inter_node.emplace(std::move(leaders));
  }
  return groups;
}

}  // namespace lockstep::detail
