#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/operation.h"

namespace lockstep::inline v0_2::hierarchical {

/// The position of a rank in a group on several hosts. A hierarchical operation divides a buffer
/// into as many shards as the host with the fewest ranks has ranks. Local rank r of each host is
/// the leader of shard r: it reduces the shard inside its host and exchanges it with the leaders of
/// the other hosts.
struct HostTopology {
  int size = 1;                       ///< ranks of the group
  int hosts = 1;                      ///< number of hosts
  int host = 0;                       ///< index of this rank's host
  int local_rank = 0;                 ///< rank among the ranks of this host
  int local_size = 1;                 ///< ranks on this host
  int shards = 1;                     ///< number of shards: ranks of the host with the fewest
  bool has_consecutive_ranks = true;  ///< on every host

  static HostTopology of(const Communicator& group);
  /// The rank of a member of the group among the ranks of its host.
  static int local_rank_of(const Communicator& group, int rank);

  /// Whether all ranks are on one host, or each is on a host of its own.
  bool has_one_level() const { return hosts == 1 || hosts == size; }
  double ranks_per_host() const { return static_cast<double>(size) / hosts; }

  /// The group of the leaders of this rank's shard, in the order of their hosts; null on a rank
  /// that is not a leader. Collective over group, for which this topology was made.
  std::shared_ptr<Communicator> inter_node(Communicator& group) const;
};

/// The division of a buffer among the shard leaders of a host, the same on all hosts. Shards are in
/// the order of local ranks; those of ranks that are not leaders are empty.
class Shards {
 public:
  /// Equal shards, rounded to whole cache lines. The last shards may be shorter or empty.
  /// Units: count elements of `element` bytes.
  static Shards of_cache_lines(const HostTopology& topology, std::size_t count,
                               std::size_t element);

  /// Nearly equal shards that begin at some of these offsets, at which parameters begin. If there
  /// are fewer parts than leaders, turn selects the leaders that get one.
  /// Units: offsets and count in elements.
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

/// Where the parts of ranks and the shards of leaders meet in a buffer that has a part for each
/// rank of the group, in rank order. Every host must have consecutive ranks. Units: elements.
struct PartsInShards {
  /// operation: with a part for each rank. hosts: of each rank.
  static PartsInShards of(const HostTopology& topology, std::span<const int> hosts,
                          const Operation& operation, const Shards& shards);

  /// Of this rank's shard, the parts of each host's ranks.
  std::vector<std::size_t> by_host;
  /// This host's parts in this rank's shard, and of these the part of each rank of this host.
  detail::Range here;
  std::vector<std::size_t> by_rank;
  /// Of this rank's part, what lies in the shard of each rank of this host.
  std::vector<std::size_t> by_leader;
};

}  // namespace lockstep::hierarchical
