#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/host/host.h"
#include "comm/host/world/rendezvous.h"
#include "comm/messages/options.h"

namespace lockstep::inline v0_2::hierarchical {

struct Options {
  /// Makes the world of all ranks over a network, with these options.
  std::function<std::shared_ptr<Communicator>(const messages::Options&)> make_network_world;
  messages::Options network = {};  ///< progress: of both worlds, `wait` if there is no thread
  /// The world of the ranks of this host, which a launcher has made; null: they make it.
  std::shared_ptr<host::World> host_memory = {};
  host::Options inside = {};
};

/// The terms of a group that only its members create.
struct NewGroup {
  std::vector<int> members = {};  ///< world ranks in the order of the group, on several hosts
  /// This number and the next are those of the group, the same on all members; higher than the
  /// last_group() of each.
  int number = 0;
  /// Distinguishes the group from all other groups and worlds of its hosts.
  std::string job = {};
  host::Options inside = {};   ///< of the ranks on this host; timeout: also of the group
  host::JoinCheck check = {};  ///< why some member of this host cannot join any more
};

/// The highest number of the groups between hosts that this rank is or was a member of.
/// world: what create() returned, if it is on several hosts.
int last_group(Communicator& world);

/// The group of these ranks of a world on several hosts that create() made, without a progress
/// thread. Only its members call it. It waits for those on this host. The ranks of each host have
/// shared memory of their own. A failure of the group ends the world. Operations of the group
/// advance only in calls that use the group. Throws: as host::rendezvous(), and CommError if the
/// network has too few tags for this number.
std::shared_ptr<Communicator> new_group(Communicator& world, const NewGroup& group);

/// This process's communicator over all ranks of a world on several hosts. An all_reduce of float32
/// or float64 has three stages. The ranks of each host reduce-scatter in shared memory, then each
/// shard is all-reduced between hosts, then the ranks of each host all-gather. Sums are in rank
/// order inside a host, then in the order of hosts.
/// All other operations use the network, or the shared memory if all members are on one host. If
/// all ranks are on one host, or each is on a host of its own, the result is a communicator of that
/// backend alone. Every process calls it once; returns when all have. Throws: as make_network_world
/// and host::rendezvous().
std::shared_ptr<Communicator> create(const Options& options);
/// The same over all processes of MPI_COMM_WORLD.
std::shared_ptr<Communicator> create_over_mpi(messages::Options network,
                                              const host::Options& inside);

}  // namespace lockstep::hierarchical
