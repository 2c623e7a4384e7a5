#include "comm/hierarchical/hierarchical_rank_context.h"

#include <utility>

#include "comm/backend_communicator.h"

namespace lockstep::inline v0_2::hierarchical {
namespace {

constexpr unsigned polls_between_checks = 8;

/// Checks of other ranks cost system calls in both worlds, so they are rare.
detail::WaitPolicy policy(bool fits) {
  return {.spins = fits ? 1000 : 0, .between_checks = detail::yield_time};
}

}  // namespace

HierarchicalRankContext::HierarchicalRankContext(std::shared_ptr<Communicator> over_network,
                                                 std::shared_ptr<Communicator> of_host,
                                                 std::chrono::milliseconds timeout, bool fits)
    : ComposedRankContext({.backend = "hierarchical",
                           .rank = over_network->world_rank(over_network->rank()),
                           .timeout = timeout,
                           .policy = policy(fits),
                           .has_mutex = true},
                          {std::move(of_host), over_network}) {}

bool HierarchicalRankContext::advance() {
  const bool advanced = RankContext::advance();
  // Operations advance only the backends that they await, but either world may fail: poll both
  // regularly.
  if (++polls_ % polls_between_checks == 0 && !failed()) attempt([&] { advance_worlds(); });
  return advanced;
}

detail::Failure HierarchicalRankContext::failure() {
  auto& over_network = static_cast<detail::BackendCommunicator&>(*worlds().back()).context();
  const auto guard = over_network.lock();
  return over_network.failed() ? over_network.first_failure() : ComposedRankContext::failure();
}

}  // namespace lockstep::hierarchical
