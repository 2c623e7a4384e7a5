#include "comm/tasks/composed_rank_context.h"

#include "comm/tasks/task_communicator.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

void ComposedRankContext::fail(const Failure& failure) noexcept {
  set_failure_raised();
  record(failure);
}

void ComposedRankContext::check_requests() {
  for (auto* group : groups()) static_cast<TaskCommunicator*>(group)->check_requests();
}

void ComposedRankContext::record(const Failure& failure) noexcept {
  if (in_child()) return;
  // The worlds must fail first. When the failure is recorded here, this rank's operations are
  // abandoned, which would otherwise become the first failure of those worlds.
  const std::lock_guard lock(record_mutex_);
  if (failed()) return;
  for (const auto& world : worlds_) world->fail_with(failure);
  RankContext::record(failure);
}

}  // namespace lockstep::detail
