#include <algorithm>
#include <map>

#include "launch/plan.h"

namespace lockstep::inline v0_2::launch {
namespace {

/// The units that ranks get: physical cores, or single logical CPUs when ranks outnumber them.
using Units = std::vector<Topology::Core>;

Units units_for(const Topology& topology, std::size_t ranks) {
  if (ranks <= topology.cores.size()) return topology.cores;
  Units units;
  for (const auto& core : topology.cores) {
    for (const int cpu : core.cpus) units.push_back({core.node, core.package, {cpu}});
  }
  return units;
}

/// Deals count ranks the units begin … end-1 in order.
void slice(const Units& units, std::size_t begin, std::size_t end, std::size_t count,
           std::vector<std::vector<int>>& cpus) {
  const std::size_t size = end - begin;
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<int> own;
    for (std::size_t u = begin + i * size / count; u < begin + (i + 1) * size / count; ++u) {
      own.insert(own.end(), units[u].cpus.begin(), units[u].cpus.end());
    }
    std::sort(own.begin(), own.end());
    cpus.push_back(std::move(own));
  }
}

/// Units of each node, in node order. Units are sorted by node already.
std::vector<std::size_t> count_by_node(const Units& units) {
  std::map<int, std::size_t> counts;
  for (const auto& unit : units) ++counts[unit.node];
  std::vector<std::size_t> sizes;
  for (const auto& [node, count] : counts) sizes.push_back(count);
  return sizes;
}

/// The largest slice of which the nodes hold at least ranks, none of them crossing a border.
std::size_t slice_size(const std::vector<std::size_t>& nodes, std::size_t ranks) {
  std::size_t size = *std::max_element(nodes.begin(), nodes.end());
  for (; size > 1; --size) {
    std::size_t slices = 0;
    for (const auto node : nodes) slices += node / size;
    if (slices >= ranks) break;
  }
  return size;
}

/// How many ranks each node takes: one after the other, each to the node that leaves it the most
/// units.
std::vector<std::size_t> ranks_by_node(const std::vector<std::size_t>& nodes, std::size_t ranks) {
  std::vector<std::size_t> taken(nodes.size(), 0);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::size_t best = 0;
    for (std::size_t k = 1; k < nodes.size(); ++k) {
      // nodes[k] / (taken[k] + 1) is larger, without rounding.
      if (nodes[k] * (taken[best] + 1) > nodes[best] * (taken[k] + 1)) best = k;
    }
    ++taken[best];
  }
  return taken;
}

}  // namespace

Division divide_cores(const Topology& topology, int ranks, Bind bind) {
  const auto count = static_cast<std::size_t>(ranks);
  const auto units = units_for(topology, count);
  Division division;
  if (count > units.size()) return division;

  const auto nodes = count_by_node(units);
  if (count < nodes.size()) {
    division.threads = static_cast<int>(units.size() / count);
    slice(units, 0, units.size(), count, division.cpus);
  } else {
    division.threads = static_cast<int>(slice_size(nodes, count));
    const auto taken = ranks_by_node(nodes, count);
    std::size_t begin = 0;
    for (std::size_t k = 0; k < nodes.size(); ++k) {
      slice(units, begin, begin + nodes[k], taken[k], division.cpus);
      begin += nodes[k];
    }
  }
  if (bind == Bind::none) {
    division.cpus.clear();
    division.threads = std::max(1, static_cast<int>(topology.cores.size() / count));
  }
  return division;
}

}  // namespace lockstep::launch
