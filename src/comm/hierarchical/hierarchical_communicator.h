#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/backend_communicator.h"
#include "comm/communicator.h"
#include "comm/hierarchical/hierarchical_rank_context.h"
#include "comm/hierarchical/host_topology.h"
#include "comm/hierarchical/staged_request.h"
#include "comm/host/host.h"
#include "comm/mpi/mpi.h"

namespace lockstep::inline v0_2::hierarchical {

/// The groups that a hierarchical one is composed of, one for each StageGroup.
struct StageCommunicators {
  std::shared_ptr<Communicator> intra_node_reduce;  ///< the ranks of this host
  /// The leaders of this rank's shard; null on a rank that leads none.
  std::shared_ptr<Communicator> inter_node;
  std::shared_ptr<Communicator> intra_node_gather;  ///< the ranks of this host again
  std::shared_ptr<Communicator> all_ranks;          ///< over MPI
};

/// One rank's view of one group whose ranks are on several hosts.
class HierarchicalCommunicator final : public detail::BackendCommunicator {
 public:
  /// The group of flat's ranks, of which inside are those on this host. Collective over flat.
  static std::shared_ptr<HierarchicalCommunicator> compose(
      std::shared_ptr<HierarchicalRankContext> context, std::shared_ptr<Communicator> flat,
      std::shared_ptr<Communicator> inside);
  HierarchicalCommunicator(std::shared_ptr<HierarchicalRankContext> context,
                           const HostTopology& topology, StageCommunicators groups);
  ~HierarchicalCommunicator() override;

  std::string_view backend() const override { return "hierarchical"; }
  int world_rank(int rank) const override { return groups_.all_ranks->world_rank(rank); }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override;
  std::shared_ptr<Communicator> split(int color, int key) override;

  // For the context.
  void poll() override;
  /// Throws when a rank that an operation waits for has left or ended.
  void check();
  /// Stages of all operations that are not over.
  std::size_t pending() const override;
  void release(std::vector<std::shared_ptr<void>>& complete) override;
  void drop(std::vector<std::shared_ptr<void>>& pending) override;

  // For pending operations.
  HierarchicalRankContext& context() const override { return *context_; }
  /// The stages of an operation.
  std::vector<Stage> stages(const Operation& operation) const;
  /// MPI's numbers of ranks that the first operation under way waits for.
  std::vector<int> holding_up() const;
  /// MPI's numbers of ranks that a stage_group's backend speaks of.
  std::vector<int> named(StageGroup stage_group, std::vector<int> ranks) const;

 private:
  Work begin(Operation&& operation) override;
  std::vector<Stage> in_shards(const Operation& operation) const;

  std::shared_ptr<HierarchicalRankContext> context_;
  HostTopology topology_;
  StageCommunicators groups_;
  std::deque<std::shared_ptr<StagedRequest>> requests_;  ///< in order
};

struct Options {
  mpi::Options between_hosts = {};
  host::Options inside = {};
};

/// This process's communicator over all processes of its MPI. An all_reduce of float32 or float64
/// is summed inside each host in shared memory. Then each shard leader exchanges its slice between
/// hosts, and each host shares the result in memory. Sums are in the order of ranks inside a host,
/// then in the order of hosts.
/// All other operations go over MPI, or over the memory of one host. Where all ranks are on one
/// host, or each on one of its own, this is that backend alone. Called once by every process;
/// returns when all have. Throws: as mpi::create() and host::meet().
std::shared_ptr<Communicator> create(const Options& options);

}  // namespace lockstep::hierarchical
