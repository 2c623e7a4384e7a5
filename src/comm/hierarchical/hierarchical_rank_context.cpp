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
                                                 std::chrono::milliseconds timeout, bool fits)
    : ComposedRankContext({.backend = "hierarchical",
                           .rank = over_mpi->world_rank(over_mpi->rank()),
                           .timeout = timeout,
                           .policy = policy(fits),
                           .has_mutex = true},
                          {std::move(of_host), over_mpi}) {}

bool HierarchicalRankContext::advance() {
  if (failed()) return false;
  attempt([&] {
    for (std::size_t i = 0; i < groups().size() && !failed(); ++i) groups()[i]->poll();
    // Operations advance only the backends of their pending stages, but either world may fail: poll
    // both regularly.
    if (++polls_ % polls_between_checks != 0) return;
    advance_worlds();
  });
  return false;
}

void HierarchicalRankContext::check(const detail::BackendRequest& /*operation*/) {
  attempt([&] {
    for (auto* group : groups()) static_cast<HierarchicalCommunicator*>(group)->check();
  });
}

detail::Failure HierarchicalRankContext::failure() {
  auto& over_mpi = static_cast<detail::BackendCommunicator&>(*worlds().back()).context();
  const auto guard = over_mpi.lock();
  return over_mpi.failed() ? over_mpi.first_failure() : ComposedRankContext::failure();
}

}  // namespace lockstep::hierarchical
