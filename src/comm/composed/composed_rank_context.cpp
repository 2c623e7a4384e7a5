#include "comm/composed/composed_rank_context.h"

#include "comm/composed/composed_communicator.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

void ComposedRankContext::fail(const Failure& failure) noexcept {
  set_failure_raised();
  record(failure);
}

bool ComposedRankContext::advance_groups() {
  for (std::size_t i = 0; i < groups().size() && !failed(); ++i) groups()[i]->poll();
  return std::exchange(progressed_, false);
}

void ComposedRankContext::check_requests() {
  for (auto* group : groups()) static_cast<ComposedCommunicator*>(group)->check_requests();
}

void ComposedRankContext::record_exception(const std::exception& error) noexcept {
  auto failure = failure_of(error);
  const auto* known = dynamic_cast<const Error*>(&error);
  // All ranks raise the text of the first failure, not that of the error on this rank.
  if (known != nullptr && !known->cause().empty()) failure.text = known->cause();
  record(failure);
}

void ComposedRankContext::record(const Failure& failure) noexcept {
  if (in_child()) return;
  // The worlds must fail first. When the failure is recorded here, this rank's operations are
  // abandoned, which would otherwise become the first failure of those worlds.
  const std::lock_guard lock(record_mutex_);
  if (failure_.recorded()) return;
  for (const auto& world : worlds_) world->fail_with(failure);
  failure_.record(failure);
}

}  // namespace lockstep::detail
