#include "lockstep/group_from_backend.h"

#include <numeric>
#include <vector>

#include "adapter/adapted_communicator.h"
#include "comm/cost/placement.h"
#include "core/environment.h"
#include "core/text.h"
#include "group/compute_threads.h"
#include "join/join_world.h"
#include "lockstep/denormals.h"
#include "lockstep/error.h"
#include "lockstep/init.h"

namespace lockstep::inline v0_2 {

Group group_from_backend(c10::intrusive_ptr<c10d::Backend> backend,
                         const GroupFromBackendOptions& options) {
  if (!backend) throw InvalidArgument("group_from_backend: got no backend");
  const auto& environment = Environment::get();
  const auto timeout = options.timeout.value_or(environment.timeout);
  if (timeout.count() <= 0) {
    throw InvalidArgument(detail::concat("group_from_backend: got a timeout of ", timeout.count(),
                                         " ms, expected more than 0"));
  }
  const bool is_set = detail::has_joined() || detail::inside_spawn();
  if (options.flush_denormals || !is_set) {
    detail::flush_denormals_in_compute_threads(
        detail::flush_denormals_setting(options.flush_denormals));
  }
  const auto context = std::make_shared<adapter::RankContext>(std::move(backend), timeout);
  std::vector<int> ranks(static_cast<std::size_t>(context->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto world =
      std::make_shared<adapter::AdaptedCommunicator>(context, std::move(ranks), context->rank(), 0);
  world->exchange_hosts(environment.host.empty() ? detail::this_host() : environment.host,
                        options.store);
  return Group(world);
}

}  // namespace lockstep
