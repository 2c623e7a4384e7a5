#include "lockstep/comm/host/host.h"

#include <sys/mman.h>
#include <unistd.h>

#include <numeric>
#include <vector>

#include "lockstep/comm/host/arena.h"
#include "lockstep/comm/host/bell.h"
#include "lockstep/comm/host/endpoint.h"
#include "lockstep/comm/host/host_communicator.h"
#include "lockstep/comm/host/process_watch.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/text.h"

namespace lockstep::host {

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
  auto& arena = world->arena();
  auto& state = arena.rank(rank);
  auto absent = RankStatus::absent;
  if (state.pid == 0) tell_pid(state, ::getpid());
  if (!state.status.compare_exchange_strong(absent, RankStatus::joined)) {
    throw InvalidArgument(detail::concat("host: rank ", rank, " has joined this world already"));
  }
  auto endpoint = std::make_shared<Endpoint>(std::move(world), rank, options);
  const Block block = arena.world_block();
  arena.populate(arena.offset_of(block.member_base(rank)), Block::member_bytes(size));

  std::vector<int> members(static_cast<std::size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  auto communicator = std::make_shared<HostCommunicator>(std::move(endpoint), std::move(members),
                                                         rank, block, false);
  if (options.watch) communicator->endpoint().watch();
  communicator->join();
  log::debug(detail::concat("rank ", rank, " of ", size, " joined its world"));
  return communicator;
}

}  // namespace lockstep::host
