#include "comm/hierarchical/staged_request.h"

#include <utility>

#include "comm/hierarchical/hierarchical_communicator.h"

// Note [How a hierarchy keeps its order]
// All members of a group must begin its operations in the same order. The order in which stages of
// several operations end differs from rank to rank. Each kind of stage therefore has a group of its
// own, a stage_group. In a stage_group, operations begin in the order in which they were issued. A
// stage waits until all earlier operations have begun their stage of that stage_group.
// A wait for one operation advances all of them, so that it does not hold up a rank that waits for
// another.

namespace lockstep::inline v0_2::hierarchical {

StagedRequest::StagedRequest(HierarchicalCommunicator& group, Operation&& operation)
    : HierarchicalRequest(group, std::move(operation)), stages_(group.stages(this->operation())) {}

void StagedRequest::advance_unless(Taken& taken) {
  while (!complete()) {
    if (work_.pending()) {
      if (!work_.ready()) break;
      worked_ += work_.worked();
      work_.wait();
    }
    if (next_ == stages_.size()) {
      set_complete();
      return;
    }
    const auto& [stage_group, begin] = stages_[next_];
    if (taken[static_cast<std::size_t>(stage_group)]) break;
    work_ = begin();
    ++next_;
  }
  for (std::size_t i = next_; i < stages_.size(); ++i) {
    taken[static_cast<std::size_t>(stages_[i].stage_group)] = true;
  }
}

std::vector<int> StagedRequest::missing() const {
  if (!under_way()) return group().holding_up();  // it stands behind others
  return group().named(stages_[next_ - 1].stage_group, work_.missing());
}

}  // namespace lockstep::hierarchical
