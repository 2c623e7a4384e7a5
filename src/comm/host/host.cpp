#include "comm/host/host.h"

#include <sys/mman.h>
#include <unistd.h>

#include <numeric>
#include <utility>
#include <vector>

#include "comm/flight/flight_recorder.h"
#include "comm/host/host_communicator.h"
#include "comm/host/host_rank_context.h"
#include "comm/host/peer_watch.h"
#include "comm/host/world/arena.h"
#include "comm/host/world/rank_end.h"
#include "core/log.h"
#include "core/system/denormals_guard.h"
#include "core/text.h"
#include "lockstep/denormals.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::host {

std::string available() {
  const int fd = ::memfd_create("lockstep-probe", MFD_CLOEXEC);
  if (fd < 0) return "this kernel has no memfd_create";
  ::close(fd);
  return {};
}

std::shared_ptr<Communicator> create(std::shared_ptr<World> world, int rank,
                                     const Options& options) {
  const int size = world->size();
  if (rank < 0 || rank >= size) {
    throw InvalidArgument(detail::concat("host: got rank ", rank, ", expected 0 to ", size - 1));
  }
  const Arena& arena = *world;
  auto& state = arena.rank(rank);
  if (state.pid.load(StdAtomics::order(Access::pid_read)) == 0) publish_pid(state, ::getpid());
  state.flushes_denormals = flushes_denormals();
  if (!set_joined(state)) {
    throw InvalidArgument(detail::concat("host: rank ", rank, " has joined this world already"));
  }
  auto context = std::make_shared<HostRankContext>(std::move(world), rank, options);
  if (options.map_heaps) arena.map_heaps();  // on failure, the context leaves the world
  const Block block = arena.world_block();
  arena.populate_records(block, rank);

  std::vector<int> members(static_cast<std::size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  auto communicator = std::make_shared<HostCommunicator>(context, std::move(members), block, 0);
  if (options.records) context->set_recorder(detail::FlightRecorder::create(*communicator));
  communicator->join();
  // With different settings, a sum would depend on the rank that computes it.
  for (int other = 1; other < size; ++other) {
    detail::expect_same_denormals(
        detail::concat("init rank ", rank, " of ", size), static_cast<std::size_t>(other),
        arena.rank(other).flushes_denormals, arena.rank(0).flushes_denormals);
  }
  log::debug(detail::concat("rank ", rank, " of ", size, " joined its world"));
  return communicator;
}

}  // namespace lockstep::host
