#include "lockstep/adapter/over.h"

#include <numeric>
#include <vector>

#include "lockstep/adapter/adapted_communicator.h"
#include "lockstep/comm/hosts.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/text.h"

namespace lockstep {

Group over(c10::intrusive_ptr<c10d::Backend> backend, const OverOptions& options) {
  if (!backend) throw InvalidArgument("over: got no backend");
  const auto& environment = Environment::get();
  const auto timeout = options.timeout.value_or(environment.timeout);
  if (timeout.count() <= 0) {
    throw InvalidArgument(
        detail::concat("over: got a timeout of ", timeout.count(), " ms, expected more than 0"));
  }
  const auto endpoint = std::make_shared<adapter::Endpoint>(std::move(backend), timeout);
  std::vector<int> ranks(static_cast<std::size_t>(endpoint->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto world = std::make_shared<adapter::AdaptedCommunicator>(endpoint, std::move(ranks),
                                                                    endpoint->rank(), 0);
  world->meet(environment.host.empty() ? detail::this_host() : environment.host, options.store);
  return Group(world);
}

}  // namespace lockstep
