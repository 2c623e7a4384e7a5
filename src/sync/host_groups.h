#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/group.h"

namespace lockstep::inline v0_2::detail {

/// The groups that a group is composed of where a host holds several of its ranks. They are the
/// ranks of each host, and the shard leaders of each part that hosts exchange, one of every host.
class HostGroups {
 public:
  /// None where all ranks are on one host, or each on one of its own.
  /// Ranks: all of the group.
  static std::optional<HostGroups> of(const Group& group);

  /// The ranks of this host.
  const Group& local() const { return local_; }
  /// The ranks that carry the same part as this one, by host; none on ranks that carry none.
  const std::optional<Group>& across() const { return across_; }
  /// Ranks of each host that carry a part: as many as the smallest has, the first of them.
  int carriers() const { return carriers_; }
  /// Ranks for each host, on average.
  double ranks_a_host() const { return ranks_a_host_; }

 private:
  HostGroups(Group local, std::optional<Group> across, int carriers, double ranks_a_host);

  Group local_;
  std::optional<Group> across_;
  int carriers_;
  double ranks_a_host_;
};

/// Lengths of at most so many parts of numel elements, cut at offsets, where parameters begin, as
/// equal as these allow. If there are fewer parts than shard leaders, turn selects the shard
/// leaders that get one.
std::vector<std::size_t> cut_at_parameters(std::span<const std::size_t> offsets, std::size_t numel,
                                           std::size_t carriers, std::size_t turn);

}  // namespace lockstep::detail
