#include "comm/hierarchical/staged_request.h"

#include <utility>

#include "comm/hierarchical/hierarchical_communicator.h"
#include "lockstep/error.h"

// Note [Order of stages]
// All members of a group must begin its operations in the same order. However, the order in which
// stages of several operations complete differs from rank to rank. Each kind of stage therefore has
// a group of its own, the stage group. In a stage group, stages begin in the order in which their
// operations were issued: a stage waits until all earlier operations have begun their stage there.
// A wait for one operation advances all of them, because other ranks may wait for this rank's share
// of another operation.

namespace lockstep::inline v0_2::hierarchical {

StagedRequest::StagedRequest(HierarchicalCommunicator& group, Operation&& operation)
    : HierarchicalRequest(group, std::move(operation)), stages_(group.stages(this->operation())) {}

void StagedRequest::advance_unless(Occupied& occupied) {
  while (!complete()) {
    if (work_.pending()) {
      if (!work_.ready()) break;
      worked_ += work_.worked();
      work_.wait();
    }
    if (next_ == stages_.size()) {
      if (operation().collective == Collective::recv) set_source(work_.source());
      set_complete();
      return;
    }
    const auto& [stage_group, begin] = stages_[next_];
    if (occupied[static_cast<std::size_t>(stage_group)]) break;
    work_ = begin();
    ++next_;
  }
  for (std::size_t i = next_; i < stages_.size(); ++i) {
    occupied[static_cast<std::size_t>(stages_[i].stage_group)] = true;
  }
}

bool StagedRequest::cancel() {
  if (operation().collective != Collective::recv) return false;
  return cancel_by([this] {
    // A receive has one stage.
    const auto withdraw = [this] { return !has_pending_stage() || work_.cancel(); };
    if (!group().context().or_fail<CommError>(withdraw)) return false;
    next_ = stages_.size();
    return true;
  });
}

std::vector<int> StagedRequest::missing() const {
  if (!has_pending_stage()) return group().first_awaited();  // it waits for earlier operations
  return group().world_ranks(stages_[next_ - 1].stage_group, work_.missing());
}

}  // namespace lockstep::hierarchical
