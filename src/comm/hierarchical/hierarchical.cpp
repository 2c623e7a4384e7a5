#include "comm/hierarchical/hierarchical.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "comm/flight/flight_recorder.h"
#include "comm/hierarchical/hierarchical_communicator.h"
#include "comm/hierarchical/host_topology.h"
#include "comm/host/peer_watch.h"
#include "comm/messages/message_communicator.h"
#include "comm/mpi/mpi.h"
#include "comm/tasks/task_communicator.h"
#include "comm/waiting.h"
#include "core/failure.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::hierarchical {
namespace {

/// One rank's state in a hierarchical world, composed of the host's world and the world over the
/// network.
class HierarchicalRankContext final : public detail::ComposedRankContext {
 public:
  /// network_world: all ranks, over the network. host_world: the ranks of this host. All groups are
  /// split from these two. inside: of the ranks of this host.
  HierarchicalRankContext(const std::shared_ptr<Communicator>& network_world,
                          const std::shared_ptr<Communicator>& host_world,
                          const host::Options& inside)
      : ComposedRankContext(
            {.backend = "hierarchical",
             .rank = network_world->world_rank(network_world->rank()),
             .timeout = inside.timeout,
             // Checks of other ranks cost system calls in both worlds.
             .policy = {.spins = spins(inside), .between_checks = detail::yield_time},
             .has_mutex = true},
            {host_world, network_world}) {}
  ~HierarchicalRankContext() { stop_thread(); }

 private:
  /// A rank spins only if every rank of this host has cores of its own.
  static int spins(const host::Options& inside) {
    const auto ranks = static_cast<int>(inside.world_ranks.size());
    return detail::fit_cores(ranks, inside.threads_per_rank, inside.cores) ? 1000 : 0;
  }
  static constexpr unsigned polls_between_checks = 8;

  bool advance() override {
    const bool advanced = RankContext::advance();
    // Operations advance only the backends that they await, but either world may fail: poll both
    // regularly.
    if (++polls_ % polls_between_checks == 0 && !failed()) attempt([&] { advance_worlds(); });
    return advanced;
  }
  /// That of the world over the network, in which the ranks of all hosts agree on the first.
  detail::Failure failure() override {
    auto& network_world = static_cast<detail::BackendCommunicator&>(*worlds().back()).context();
    const auto guard = network_world.lock();
    return network_world.failed() ? network_world.first_failure() : ComposedRankContext::failure();
  }

  unsigned polls_ = 0;
};

/// The memory of the ranks of this host, which meet by a name. The errors of host::rendezvous()
/// number these ranks from 0: they become world ranks, and the text names the world ranks.
std::shared_ptr<host::World> rendezvous(const std::string& name, const HostTopology& topology,
                                        const host::Options& inside, const host::JoinCheck& check) {
  try {
    return host::rendezvous(detail::concat(name, " of host ", topology.host), topology.local_rank,
                            topology.local_size, inside.timeout, check);
  } catch (const CommError& error) {
    const auto text =
        detail::concat(detail::rank_list(inside.world_ranks),
                       " of the world, numbered from 0 on their host: ", error.what());
    const int rank = error.rank();
    const ErrorDetails details{
        .rank = rank < 0 ? rank : inside.world_ranks.at(static_cast<std::size_t>(rank)),
        .operation = error.operation()};
    if (error.kind() == ErrorKind::timeout) throw TimeoutError(text, details);
    throw CommError(text, details);
  }
}

/// The group over the network with the ranks of a world that create() made.
messages::MessageCommunicator& network_world_of(Communicator& world) {
  if (auto* composed = dynamic_cast<HierarchicalCommunicator*>(&world)) {
    return composed->network_world();
  }
  return dynamic_cast<messages::MessageCommunicator&>(world);
}

/// Composes a world over the network and the worlds of its hosts. If all ranks are on one host, the
/// result is the world of that host.
/// inside.records: whether the outermost world records.
/// memory: of the ranks of this host. If it is null, they join by the name, and the check may end
/// their wait.
std::shared_ptr<Communicator> compose(const std::shared_ptr<Communicator>& network_world,
                                      host::Options inside, std::shared_ptr<host::World> memory,
                                      const std::string& name, const host::JoinCheck& check,
                                      bool by_thread = false) {
  try {
    const auto topology = HostTopology::of(*network_world);
    for (int rank = 0; rank < network_world->size(); ++rank) {
      if (network_world->hosts()[static_cast<std::size_t>(rank)] != topology.host) continue;
      inside.world_ranks.push_back(network_world->world_rank(rank));
    }
    inside.watch = true;
    const bool records = inside.records && topology.hosts > 1;
    inside.records = inside.records && !records;
    if (memory == nullptr) memory = rendezvous(name, topology, inside, check);
    const auto host_world = host::create(std::move(memory), topology.local_rank, inside);
    if (topology.hosts == 1) return host_world;

    const auto context =
        std::make_shared<HierarchicalRankContext>(network_world, host_world, inside);
    auto composed = HierarchicalCommunicator::compose(context, network_world, host_world);
    if (records) context->set_recorder(detail::FlightRecorder::create(*composed));
    if (by_thread) context->start_progress_thread();
    return composed;
  } catch (const std::exception& error) {
    auto failure = detail::failure_of(error);
    if (failure.rank < 0) failure.rank = network_world->world_rank(network_world->rank());
    network_world->fail_with(failure);  // ranks of other hosts wait for this rank
    throw;
  }
}

}  // namespace

int last_group(Communicator& world) { return network_world_of(world).last_group(); }

std::shared_ptr<Communicator> new_group(Communicator& world, const NewGroup& group) {
  const auto network_world = network_world_of(world).part(group.members, group.number);
  if (HostTopology::of(*network_world).has_one_level()) return network_world;
  auto inside = group.inside;
  inside.records = false;
  return compose(network_world, inside, nullptr, group.job, group.check);
}

std::shared_ptr<Communicator> create_over_mpi(messages::Options network,
                                              const host::Options& inside) {
  if (!mpi::by_thread(network)) network.progress = ProgressMode::wait;
  return create(
      {.make_network_world = mpi::create, .network = std::move(network), .inside = inside});
}

std::shared_ptr<Communicator> create(const Options& options) {
  const bool by_thread = options.network.progress != ProgressMode::wait;
  auto network = options.network;
  network.progress = ProgressMode::wait;  // one progress thread serves both worlds
  network.records = false;                // the outermost world of the rank records
  const auto network_world = options.make_network_world(network);
  if (const auto topology = HostTopology::of(*network_world); topology.hosts == topology.size) {
    messages::begin(*network_world, true, by_thread);
    return network_world;
  }

  // Distinguishes this world from other worlds on this host.
  std::uint64_t token = (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  network_world->broadcast(&token, 1, DType::i64, 0).wait();
  const host::LauncherWatch watch(options.inside.launcher, options.inside.launcher_name);
  const auto ended = [&]() -> std::optional<std::string> {
    try {
      network_world->make_progress();
    } catch (const CommError& error) {  // a rank has ended
      return error.what();
    }
    return watch.ended();
  };
  return compose(network_world, options.inside, options.host_memory,
                 detail::concat("hierarchy ", token), ended, by_thread);
}

}  // namespace lockstep::hierarchical
