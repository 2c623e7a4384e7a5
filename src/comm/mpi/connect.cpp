#include "comm/mpi/connect.h"

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/control/failure.h"
#include "comm/control/gathering.h"
#include "comm/control/joining.h"
#include "comm/hosts.h"
#include "core/digest.h"
#include "core/host_name.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::mpi {
namespace {

control::Settings settings_of(MpiCommunicator& world) {
  const auto& options = world.context().options();
  const auto network = detail::this_host();
  return {.rank = world.rank(),
          .size = world.size(),
          .host = options.host.empty() ? detail::host_name() : options.host,
          .network = detail::digest(std::as_bytes(std::span(network))),
          .interface = options.interface,
          .timeout = options.timeout,
          .heartbeat = options.heartbeat,
          .look = [&world] { world.look(); }};
}

std::vector<control::Member> meet(MpiCommunicator& world) {
  const auto settings = settings_of(world);
  std::optional<control::Gathering> gathering;
  control::Offer offer;
  if (world.rank() == 0) {
    try {
      offer = gathering.emplace(settings).offer();
    } catch (const CommError& error) {
      control::set_text(offer.refusal, error.what());  // the others wait for the offer
    }
  }
  world.share(std::as_writable_bytes(std::span(&offer, 1)));
  if (const auto why = control::text_of(offer.refusal); !why.empty()) throw CommError(why);
  if (gathering) return gathering->wait();
  std::vector<control::Member> rank_0;
  rank_0.push_back(control::join(offer, settings));
  return rank_0;
}

}  // namespace

void connect_hosts(MpiCommunicator& world) {
  auto& context = world.context();
  try {
    context.watch(meet(world));
  } catch (const CommError& error) {
    context.fail(control::failure_of(error));
    throw;
  }
}

}  // namespace lockstep::mpi
