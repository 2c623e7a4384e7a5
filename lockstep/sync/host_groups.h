#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/group.h"

namespace lockstep::detail {

/// The groups that a group is composed of where a host holds several of its ranks: those of each
/// host, and of every host the rank that carries the same part of what is exchanged between them.
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
/// equal as these allow. Of fewer parts than carriers, turn says who carries them.
std::vector<std::size_t> cut_at_parameters(std::span<const std::size_t> offsets, std::size_t numel,
                                           std::size_t carriers, std::size_t turn);

}  // namespace lockstep::detail
