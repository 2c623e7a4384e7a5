#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "comm/backend_communicator.h"
#include "lockstep/work.h"

namespace lockstep::inline v0_2::hierarchical {

class HierarchicalCommunicator;
using HierarchicalRequest = detail::GroupRequest<HierarchicalCommunicator>;

/// The groups of which a hierarchical group is composed. Each has its own order of operations.
enum class StageGroup {
  intra_node_reduce,  ///< inside the host: reduce-scatter to the shard leaders
  inter_node,         ///< between hosts: all_reduce among the leaders of one shard
  intra_node_gather,  ///< inside the host: all-gather from the shard leaders
  all_ranks           ///< all ranks, over MPI
};
inline constexpr std::size_t stage_groups = 4;

/// For each StageGroup, whether an earlier operation has not begun its stage there yet.
using Occupied = std::array<bool, stage_groups>;

/// One stage of a hierarchical operation: an operation in a stage group.
struct Stage {
  StageGroup stage_group;
  std::function<Work()> begin;
};

/// An operation on this rank, with its stages in sequence. Note [Order of stages] is in
/// staged_request.cpp.
class StagedRequest final : public HierarchicalRequest {
 public:
  StagedRequest(HierarchicalCommunicator& group, Operation&& operation);

  /// Begins and completes stages in sequence, up to a stage whose group is occupied by an earlier
  /// operation. Then marks the groups of its remaining stages as occupied.
  void advance_unless(Occupied& occupied);
  /// Throws: CommError if a rank that the pending stage waits for has left or ended.
  void check_stage() { work_.check(); }
  /// Whether a stage has begun and is not complete.
  bool has_pending_stage() const { return work_.pending(); }
  std::size_t stages_left() const { return stages_.size() - next_ + (has_pending_stage() ? 1 : 0); }

  void advance() override {}  // the group advances its operations in order
  std::vector<int> missing() const override;
  std::string note() const override { return note_of(work_); }
  bool cancel() override;
  /// An operation in a later stage may wait for a rank that itself waits in an earlier stage. Only
  /// the wait in the earlier stage can name the rank at fault, so it times out first.
  std::chrono::milliseconds grace() const override {
    return next_ * std::chrono::milliseconds(200);
  }

 private:
  std::vector<Stage> stages_;
  std::size_t next_ = 0;  ///< index of the stage to begin next
  Work work_;             ///< of the previous stage
};

}  // namespace lockstep::hierarchical
