#include "comm/hierarchical/hierarchical_rank_context.h"

#include <utility>

#include "comm/hierarchical/hierarchical_communicator.h"

namespace lockstep::inline v0_2::hierarchical {
namespace {

constexpr unsigned polls_between_checks = 8;

/// Checks of other ranks cost system calls in both worlds, so they are rare.
detail::WaitPolicy policy(bool fits) {
  return {.spins = fits ? 1000 : 0, .between_checks = detail::yield_time};
}

}  // namespace

HierarchicalRankContext::HierarchicalRankContext(std::shared_ptr<Communicator> over_mpi,
                                                 std::shared_ptr<Communicator> of_host,
                                                 std::vector<int> world_ranks,
                                                 std::chrono::milliseconds timeout, bool fits)
    : RankContext({.backend = "hierarchical",
                   .rank = over_mpi->rank(),
                   .timeout = timeout,
                   .policy = policy(fits),
                   .has_mutex = true}),
      over_mpi_(std::move(over_mpi)),
      of_host_(std::move(of_host)),
      world_ranks_(std::move(world_ranks)) {}

template <class Fn>
void HierarchicalRankContext::attempt(const Fn& fn) noexcept {
  try {
    fn();
  } catch (const std::exception& error) {
    record(error);
  }
}

bool HierarchicalRankContext::advance() {
  if (failed()) return false;
  attempt([&] {
    for (std::size_t i = 0; i < groups().size() && !failed(); ++i) groups()[i]->poll();
    // Operations advance only the backends of their pending stages, but either world may fail: poll
    // both regularly.
    if (++polls_ % polls_between_checks != 0) return;
    over_mpi_->make_progress();
    of_host_->make_progress();
  });
  return false;
}

void HierarchicalRankContext::check(const detail::BackendRequest& /*operation*/) {
  attempt([&] {
    for (auto* group : groups()) static_cast<HierarchicalCommunicator*>(group)->check();
  });
}

void HierarchicalRankContext::fail(detail::FailureKind kind,
                                   const control::Failure& failure) noexcept {
  set_failure_raised();
  record(kind, failure);
}

void HierarchicalRankContext::record(const std::exception& error) noexcept {
  auto failure = control::failure_of(error);
  const auto* known = dynamic_cast<const Error*>(&error);
  // All ranks raise the text of the first failure, not that of the error on this rank.
  if (known != nullptr && !known->cause().empty()) failure.text = known->cause();
  record(detail::FailureKind::elsewhere, failure);
}

void HierarchicalRankContext::record(detail::FailureKind /*kind*/,
                                     const control::Failure& failure) noexcept {
  if (in_child()) return;
  // The two worlds must fail first. When the failure is recorded here, this rank's operations are
  // abandoned, which would otherwise become the first failure of those worlds.
  const std::lock_guard lock(record_mutex_);
  if (failure_.recorded()) return;
  for (auto* world : {of_host_.get(), over_mpi_.get()}) world->fail_with(failure);
  failure_.record(failure);
}

}  // namespace lockstep::hierarchical
