#include "sync/host_groups.h"

#include <algorithm>
#include <utility>

#include "comm/communicator.h"

namespace lockstep::inline v0_2::detail {

HostGroups::HostGroups(Group local, std::optional<Group> across, int carriers, double ranks_a_host)
    : local_(std::move(local)),
      across_(std::move(across)),
      carriers_(carriers),
      ranks_a_host_(ranks_a_host) {}

std::optional<HostGroups> HostGroups::of(const Group& group) {
  const int hosts = group.nodes();
  if (hosts == 1 || hosts == group.size()) return std::nullopt;
  std::vector<int> ranks(static_cast<std::size_t>(hosts));
  for (const int host : group.communicator().hosts()) ++ranks[static_cast<std::size_t>(host)];
  const int carriers = std::ranges::min(ranks);

  auto local = group.local();
  const int part = group.local_rank();
  auto carrying = group.communicator().split(part < carriers ? part : -1, group.node());
  std::optional<Group> across;
  if (carrying != nullptr) {
    // This communicator sends the data, so the group's statistics count it.
    carrying->set_observer(group.communicator().observer());
    across.emplace(std::move(carrying));
  }
  return HostGroups(std::move(local), std::move(across), carriers,
                    static_cast<double>(group.size()) / hosts);
}

std::vector<std::size_t> cut_at_parameters(std::span<const std::size_t> offsets, std::size_t numel,
                                           std::size_t carriers, std::size_t turn) {
  std::vector<std::size_t> parts;
  std::size_t begin = 0;
  const auto cut = [&](std::size_t end) {
    if (end > begin) parts.push_back(end - begin);
    begin = std::max(begin, end);
  };
  for (std::size_t part = 1; part < carriers; ++part) {
    const std::size_t wanted = numel / carriers * part;
    const auto distance = [&](std::size_t offset) {
      return offset > wanted ? offset - wanted : wanted - offset;
    };
    const auto nearest = std::ranges::min_element(offsets, {}, distance);
    if (nearest != offsets.end()) cut(*nearest);
  }
  cut(numel);
  const auto idle = carriers - parts.size();
  parts.insert(parts.begin(), turn % (idle + 1), 0);
  parts.resize(carriers);
  return parts;
}

}  // namespace lockstep::detail
