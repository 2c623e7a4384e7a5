#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/operation.h"

namespace lockstep::inline v0_2::hierarchical {

/// The place of a rank in a group whose ranks are on several hosts. A hierarchical operation
/// divides a buffer into shards, as many as the smallest host has ranks. Local rank r of each host
/// leads shard r: it reduces the shard inside its host, exchanges it with the other hosts' leaders,
/// and shares the result inside its host.
struct HostTopology {
  int size = 1;        ///< ranks of the group
  int hosts = 1;       ///< hosts that they are on
  int host = 0;        ///< number of this rank's host
  int local_rank = 0;  ///< rank among those of this host
  int local_size = 1;  ///< ranks on this host
  int shards = 1;      ///< ranks on the smallest host

  static HostTopology of(const Communicator& group);

  /// All ranks are on one host, or each is on one of its own.
  bool has_one_level() const { return hosts == 1 || hosts == size; }
  double ranks_per_host() const { return static_cast<double>(size) / hosts; }

  /// The leaders of this rank's shard, in the order of their hosts; null on a rank that leads none.
  /// Collective over the group, which is that of the topology.
  std::shared_ptr<Communicator> inter_node(Communicator& group) const;
};

/// The division of a buffer among the shard leaders of a host, alike on all hosts. Shards lie in
/// the order of local ranks; the shards of ranks that lead none are empty.
class Shards {
 public:
  /// As equal as whole cache lines allow. The last shards may be shorter or empty.
  static Shards of_cache_lines(const HostTopology& topology, std::size_t count,
                               std::size_t element);

  /// As equal as cuts at these offsets, where parameters begin, allow. If there are fewer parts
  /// than leaders, turn selects the leaders that get one.
  static Shards at_offsets(const HostTopology& topology, std::span<const std::size_t> offsets,
                           std::size_t count, std::size_t turn);

  /// Elements of each local rank's shard.
  const std::vector<std::size_t>& counts() const { return counts_; }
  /// This rank's shard.
  const detail::Range& own() const { return own_; }

 private:
  Shards(const HostTopology& topology, std::vector<std::size_t> counts);

  std::vector<std::size_t> counts_;
  detail::Range own_;
};

}  // namespace lockstep::hierarchical
