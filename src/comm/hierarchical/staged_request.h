#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <vector>

#include "comm/backend_communicator.h"
#include "lockstep/work.h"

namespace lockstep::inline v0_2::hierarchical {

class HierarchicalCommunicator;
using HierarchicalRequest = detail::GroupRequest<HierarchicalCommunicator>;

/// The groups that a hierarchical group is composed of, each with an order of its own.
enum class StageGroup {
  intra_node_reduce,  ///< inside the host: reduce-scatter to the shard leaders
  inter_node,         ///< between hosts: the leaders of one shard
  intra_node_gather,  ///< inside the host: all-gather from the shard leaders
  all_ranks           ///< all ranks, over the network
};
inline constexpr std::size_t stage_groups = 4;

/// For each stage_group, whether an earlier operation has yet to begin there.
using Taken = std::array<bool, stage_groups>;

/// One operation of another group that a hierarchical one consists of.
struct Stage {
  StageGroup stage_group;
  std::function<Work()> begin;
};

/// An operation on this rank: its stages one after another. Note [How a hierarchy keeps its order]
/// is in staged_request.cpp.
class StagedRequest final : public HierarchicalRequest {
 public:
  StagedRequest(HierarchicalCommunicator& group, Operation&& operation);

  /// Advances as far as stage_groups that are not taken allow, and takes those of the stages to
  /// come.
  void advance_unless(Taken& taken);
  /// Throws when a rank that its stage waits for has left or ended.
  void check_stage() { work_.check(); }
  /// Whether a stage of it has begun and not ended.
  bool under_way() const { return work_.pending(); }
  std::size_t stages_left() const { return stages_.size() - next_ + (under_way() ? 1 : 0); }

  void advance() override {}  // its group advances it, with those before it
  std::vector<int> missing() const override;
  /// An operation in a later stage may wait for a rank that itself waits in an earlier stage. Only
  /// the earlier stage knows the rank at fault, so its wait times out first.
  std::chrono::milliseconds grace() const override {
    return next_ * std::chrono::milliseconds(200);
  }

 private:
  std::vector<Stage> stages_;
  std::size_t next_ = 0;  ///< stage to begin
  Work work_;             ///< of the stage before it
};

}  // namespace lockstep::hierarchical
