#include "comm/hierarchical/host_topology.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/cost/cost.h"

namespace lockstep::inline v0_2::hierarchical {

int HostTopology::local_rank_of(const Communicator& group, int rank) {
  const auto host = group.hosts().begin() + rank;
  return static_cast<int>(std::count(group.hosts().begin(), host, *host));
}

HostTopology HostTopology::of(const Communicator& group) {
  const auto& hosts = group.hosts();
  const auto placement = Placement::of(hosts);
  const int host = hosts[static_cast<std::size_t>(group.rank())];
  return {.size = group.size(),
          .hosts = placement.hosts,
          .host = host,
          .local_rank = local_rank_of(group, group.rank()),
          .local_size = static_cast<int>(std::ranges::count(hosts, host)),
          .shards = placement.least_on_host,
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

detail::Range intersection(const detail::Range& a, const detail::Range& b) {
  const auto begin = std::max(a.begin, b.begin);
  const auto end = std::min(a.begin + a.length, b.begin + b.length);
  return {.begin = begin, .length = end > begin ? end - begin : 0};
}

}  // namespace

PartsInShards PartsInShards::of(const HostTopology& topology, std::span<const int> hosts,
                                const Operation& operation, const Shards& shards) {
  std::vector<std::size_t> begins{0};  // of the ranks' parts
  for (int rank = 0; rank < topology.size; ++rank) {
    begins.push_back(begins.back() + operation.part(rank));
  }
  // The parts of the ranks from first to before end.
  const auto parts = [&](std::size_t first, std::size_t end) {
    return detail::Range{.begin = begins[first], .length = begins[end] - begins[first]};
  };
  const auto first_of = [&](int host) {
    return static_cast<std::size_t>(std::ranges::lower_bound(hosts, host) - hosts.begin());
  };
  PartsInShards found;
  for (int host = 0; host < topology.hosts; ++host) {
    const auto block = parts(first_of(host), first_of(host + 1));
    found.by_host.push_back(intersection(shards.own(), block).length);
  }
  const auto first = first_of(topology.host), end = first_of(topology.host + 1);
  found.here = intersection(shards.own(), parts(first, end));
  for (auto rank = first; rank < end; ++rank) {
    found.by_rank.push_back(intersection(found.here, parts(rank, rank + 1)).length);
  }
  const auto own = first + static_cast<std::size_t>(topology.local_rank);
  std::size_t begin = 0;
  for (const auto length : shards.counts()) {
    const detail::Range shard{.begin = begin, .length = length};
    found.by_leader.push_back(intersection(shard, parts(own, own + 1)).length);
    begin += length;
  }
  return found;
}

}  // namespace lockstep::hierarchical
