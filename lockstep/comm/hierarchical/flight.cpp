#include "lockstep/comm/hierarchical/flight.h"

#include <utility>

#include "lockstep/comm/hierarchical/hierarchical_communicator.h"

// Note [How a hierarchy keeps its order]
// All members of a group must begin its operations in the same order, and stages of several
// operations end in an order that differs from rank to rank. So each kind of stage has a group of
// its own, a lane, and in a lane operations begin in the order in which they were issued: a stage
// waits until all earlier operations have begun theirs of that lane. Whoever waits for one
// operation advances all of them, so that nobody who waits for another is held up by it.

namespace lockstep::hierarchical {

Flight::Flight(HierarchicalCommunicator& group, Operation&& operation)
    : InFlight(group, std::move(operation)), stages_(group.stages(this->operation())) {}

void Flight::advance_unless(Taken& taken) {
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
    const auto& [lane, begin] = stages_[next_];
    if (taken[static_cast<std::size_t>(lane)]) break;
    work_ = begin();
    ++next_;
  }
  for (std::size_t i = next_; i < stages_.size(); ++i) {
    taken[static_cast<std::size_t>(stages_[i].lane)] = true;
  }
}

std::vector<int> Flight::missing() const {
  if (!under_way()) return group().holding_up();  // it stands behind others
  return group().named(stages_[next_ - 1].lane, work_.missing());
}

}  // namespace lockstep::hierarchical
