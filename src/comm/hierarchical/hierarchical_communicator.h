#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/hierarchical/host_topology.h"
#include "comm/tasks/task_communicator.h"

namespace lockstep::inline v0_2::messages {
class MessageCommunicator;
}

namespace lockstep::inline v0_2::hierarchical {

/// A group of which a hierarchical group is composed. Note [Order of stages] is in
/// hierarchical_communicator.cpp.
struct StageGroup {
  std::shared_ptr<Communicator> ranks = {};
  detail::Turns turns = {};
};

/// The groups of which a hierarchical group is composed. Without groups inside a host, it has only
/// operations that run over the network.
struct StageGroups {
  StageGroup intra_node_reduce = {};  ///< the ranks of this host
  StageGroup inter_node = {};         ///< the leaders of this rank's shard; none on other ranks
  StageGroup intra_node_gather = {};  ///< the ranks of this host, as a second group
  StageGroup all_ranks = {};          ///< over the network
};

/// One rank's communicator of one group whose ranks are on several hosts.
class HierarchicalCommunicator final : public detail::TaskCommunicator {
 public:
  /// Creates the hierarchical group with the ranks of network_world. inside is the group of its
  /// ranks on this host. Collective over inside.
  static std::shared_ptr<HierarchicalCommunicator> compose(
      std::shared_ptr<detail::RankContext> context, std::shared_ptr<Communicator> network_world,
      std::shared_ptr<Communicator> inside);
  HierarchicalCommunicator(std::shared_ptr<detail::RankContext> context, StageGroups groups);
  ~HierarchicalCommunicator() override;

  std::string_view backend() const override { return "hierarchical"; }
  int world_rank(int rank) const override { return groups_.all_ranks.ranks->world_rank(rank); }
  int group_number() const override {
    return static_cast<const BackendCommunicator&>(*groups_.all_ranks.ranks).group_number();
  }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override;
  std::optional<std::uint64_t> place_of(const void* memory) const override;
  std::byte* at_place(std::uint64_t place) const override;
  std::shared_ptr<Communicator> split(int color, int key) override;
  std::shared_ptr<Communicator> new_group(std::span<const int> members) override;
  bool matches_by_tag() const override { return true; }

  /// The same ranks over the network.
  messages::MessageCommunicator& network_world() const;

 private:
  Work begin(Operation&& operation) override;
  detail::Task task(detail::TaskRequest& request);
  detail::Task whole(detail::TaskRequest& request, StageGroup& group);
  detail::Task refusal(const Operation& operation);
  detail::Task in_shards(const Operation& operation);
  detail::Task to_root_in_shards(const Operation& operation);
  detail::Task to_parts_in_shards(const Operation& operation);
  detail::Task from_parts_in_shards(const Operation& operation);

  HostTopology topology_;
  StageGroups groups_;
};

}  // namespace lockstep::hierarchical
