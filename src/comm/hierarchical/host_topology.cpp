#include "comm/hierarchical/host_topology.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace lockstep::inline v0_2::hierarchical {

int HostTopology::local_rank_of(const Communicator& group, int rank) {
  const auto host = group.hosts().begin() + rank;
  return static_cast<int>(std::count(group.hosts().begin(), host, *host));
}

HostTopology HostTopology::of(const Communicator& group) {
  const auto& hosts = group.hosts();
  const auto rank = static_cast<std::size_t>(group.rank());
  std::vector<int> ranks(static_cast<std::size_t>(std::ranges::max(hosts) + 1));
  for (const int host : hosts) ++ranks[static_cast<std::size_t>(host)];
  const int host = hosts[rank];
  return {.size = group.size(),
          .hosts = static_cast<int>(ranks.size()),
          .host = host,
          .local_rank = local_rank_of(group, group.rank()),
          .local_size = ranks[static_cast<std::size_t>(host)],
          .shards = std::ranges::min(ranks),
          .has_consecutive_ranks = std::ranges::is_sorted(hosts)};
}

std::shared_ptr<Communicator> HostTopology::inter_node(Communicator& group) const {
  return group.split(local_rank < shards ? local_rank : -1, host);
}

Shards::Shards(const HostTopology& topology, std::vector<std::size_t> counts)
    : counts_(std::move(counts)) {
  counts_.resize(static_cast<std::size_t>(topology.local_size));
  const auto own = counts_.begin() + topology.local_rank;
  own_ = {.begin = std::accumulate(counts_.begin(), own, std::size_t{0}), .length = *own};
}

Shards Shards::of_cache_lines(const HostTopology& topology, std::size_t count,
                              std::size_t element) {
  std::vector<std::size_t> counts;
  for (int leader = 0; leader < topology.shards; ++leader) {
    counts.push_back(detail::slice_of(count, element, leader, topology.shards).length);
  }
  return {topology, std::move(counts)};
}

Shards Shards::at_offsets(const HostTopology& topology, std::span<const std::size_t> offsets,
                          std::size_t count, std::size_t turn) {
  const auto leaders = static_cast<std::size_t>(topology.shards);
  std::vector<std::size_t> counts;
  std::size_t begin = 0;
  const auto cut = [&](std::size_t end) {
    if (end > begin) counts.push_back(end - begin);
    begin = std::max(begin, end);
  };
  for (std::size_t leader = 1; leader < leaders; ++leader) {
    const std::size_t wanted = count / leaders * leader;
    const auto distance = [&](std::size_t offset) {
      return offset > wanted ? offset - wanted : wanted - offset;
    };
    const auto nearest = std::ranges::min_element(offsets, {}, distance);
    if (nearest != offsets.end()) cut(*nearest);
  }
  cut(count);
  const auto idle = leaders - counts.size();
  counts.insert(counts.begin(), turn % (idle + 1), 0);
  counts.resize(leaders);
  return {topology, std::move(counts)};
}

namespace {

/// Consecutive ranges of these lengths.
std::vector<detail::Range> ranges_of(std::span<const std::size_t> lengths) {
  std::vector<detail::Range> ranges;
  std::size_t begin = 0;
  for (const auto length : lengths) {
    ranges.push_back({.begin = begin, .length = length});
    begin += length;
  }
  return ranges;
}

detail::Range intersection(const detail::Range& a, const detail::Range& b) {
  const auto begin = std::max(a.begin, b.begin);
  const auto end = std::min(a.begin + a.length, b.begin + b.length);
  return {.begin = begin, .length = end > begin ? end - begin : 0};
}

}  // namespace

PartsInShards PartsInShards::of(const HostTopology& topology, std::span<const int> hosts,
                                const Operation& operation, const Shards& shards) {
  std::vector<std::size_t> parts;
  std::vector<std::size_t> of_hosts(static_cast<std::size_t>(topology.hosts));
  for (int rank = 0; rank < topology.size; ++rank) {
    parts.push_back(operation.part(rank));
    of_hosts[static_cast<std::size_t>(hosts[static_cast<std::size_t>(rank)])] += parts.back();
  }
  const auto blocks = ranges_of(of_hosts);
  const auto first = std::ranges::find(hosts, topology.host) - hosts.begin();
  const auto part_ranges = ranges_of(parts);
  const auto here =
      std::span(part_ranges)
          .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(topology.local_size));
  PartsInShards found;
  for (const auto& block : blocks) {
    found.by_host.push_back(intersection(shards.own(), block).length);
  }
  found.here = intersection(shards.own(), blocks[static_cast<std::size_t>(topology.host)]);
  for (const auto& part : here) found.by_rank.push_back(intersection(found.here, part).length);
  const auto& own = here[static_cast<std::size_t>(topology.local_rank)];
  for (const auto& shard : ranges_of(shards.counts())) {
    found.by_leader.push_back(intersection(shard, own).length);
  }
  return found;
}

}  // namespace lockstep::hierarchical
