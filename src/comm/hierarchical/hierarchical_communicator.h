#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/backend_communicator.h"
#include "comm/communicator.h"
#include "comm/hierarchical/hierarchical_rank_context.h"
#include "comm/hierarchical/host_topology.h"
#include "comm/hierarchical/staged_request.h"

namespace lockstep::inline v0_2::hierarchical {

/// The groups of which a hierarchical group is composed, one for each StageGroup. Without groups
/// inside a host, it has only operations that run over MPI.
struct StageCommunicators {
  std::shared_ptr<Communicator> intra_node_reduce = {};  ///< the ranks of this host
  /// The leaders of this rank's shard; null on a rank that is not a leader.
  std::shared_ptr<Communicator> inter_node = {};
  std::shared_ptr<Communicator> intra_node_gather = {};  ///< those of this host, as a second group
  std::shared_ptr<Communicator> all_ranks = {};          ///< over MPI
  /// The world rank of each rank of the world whose memory the groups inside this host use.
  std::vector<int> world_ranks = {};
};

/// One rank's communicator of one group whose ranks are on several hosts.
class HierarchicalCommunicator final : public detail::BackendCommunicator {
 public:
  /// Creates the hierarchical group with the ranks of flat. inside is the group of its ranks on
  /// this host, and world_ranks are those of its world. Collective over flat.
  static std::shared_ptr<HierarchicalCommunicator> compose(
      std::shared_ptr<HierarchicalRankContext> context, std::shared_ptr<Communicator> flat,
      std::shared_ptr<Communicator> inside, std::vector<int> world_ranks);
  HierarchicalCommunicator(std::shared_ptr<HierarchicalRankContext> context,
                           const HostTopology& topology, StageCommunicators groups);
  ~HierarchicalCommunicator() override;

  std::string_view backend() const override { return "hierarchical"; }
  int world_rank(int rank) const override { return groups_.all_ranks->world_rank(rank); }
  int group_number() const override {
    return static_cast<const BackendCommunicator&>(*groups_.all_ranks).group_number();
  }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override;
  std::optional<std::uint64_t> place_of(const void* memory) const override;
  std::byte* at_place(std::uint64_t place) const override;
  std::shared_ptr<Communicator> split(int color, int key) override;
  std::shared_ptr<Communicator> new_group(std::span<const int> members) override;
  bool matches_by_tag() const override { return true; }

  /// The same ranks over MPI.
  Communicator& over_mpi() const { return *groups_.all_ranks; }

  // Called by the context.
  void poll() override;
  /// Checks all operations.
  /// Throws: CommError if a rank that an operation waits for has left or ended.
  void check();
  /// Number of unfinished stages of all operations.
  std::size_t pending() const override;
  void release(std::vector<std::shared_ptr<void>>& complete) override;
  void drop(std::vector<std::shared_ptr<void>>& pending) override;

  // For pending operations.
  HierarchicalRankContext& context() const override { return *context_; }
  /// The stages of an operation.
  std::vector<Stage> stages(const Operation& operation) const;
  /// World ranks that the first operation with a pending stage waits for.
  std::vector<int> first_awaited() const;
  /// Converts ranks from a stage group's backend, which may count the ranks of this host, to world
  /// ranks.
  std::vector<int> world_ranks(StageGroup stage_group, std::vector<int> ranks) const;

 private:
  Work begin(Operation&& operation) override;
  std::vector<Stage> in_shards(const Operation& operation) const;
  std::vector<Stage> to_root_in_shards(const Operation& operation) const;
  std::vector<Stage> to_parts_in_shards(const Operation& operation) const;
  std::vector<Stage> from_parts_in_shards(const Operation& operation) const;

  std::shared_ptr<HierarchicalRankContext> context_;
  HostTopology topology_;
  StageCommunicators groups_;
  std::deque<std::shared_ptr<StagedRequest>> requests_;  ///< in order
};

}  // namespace lockstep::hierarchical
