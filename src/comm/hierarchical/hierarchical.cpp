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
                          std::chrono::milliseconds timeout, const host::Options& inside)
      : ComposedRankContext(
            {.backend = "hierarchical",
             .rank = network_world->world_rank(network_world->rank()),
             .timeout = timeout,
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

/// Runs fn. Its errors number the ranks of this host from 0; converts their rank to a world rank,
/// and adds the world ranks of this host to the text.
template <class Fn>
auto with_world_ranks(const std::vector<int>& world_ranks, const Fn& fn) {
  try {
    return fn();
  } catch (const CommError& error) {
    const auto text =
        detail::concat(detail::rank_list(world_ranks),
                       " of the world, numbered from 0 on their host: ", error.what());
    const int rank = error.rank();
    const ErrorDetails details{
        .rank = rank < 0 ? rank : world_ranks.at(static_cast<std::size_t>(rank)),
        .operation = error.operation()};
    if (error.kind() == ErrorKind::timeout) throw TimeoutError(text, details);
    throw CommError(text, details);
  }
}

/// The ranks of each host, in the order of the hosts.
std::vector<std::vector<int>> ranks_by_host(const Communicator& group) {
  std::vector<std::vector<int>> ranks(
      static_cast<std::size_t>(std::ranges::max(group.hosts()) + 1));
  for (int rank = 0; rank < group.size(); ++rank) {
    ranks[static_cast<std::size_t>(group.hosts()[static_cast<std::size_t>(rank)])].push_back(rank);
  }
  return ranks;
}

/// The ranks that lead this rank's shard; empty if this rank does not lead one.
std::vector<int> leaders(const HostTopology& topology, const std::vector<std::vector<int>>& ranks) {
  std::vector<int> found;
  if (topology.local_rank >= topology.shards) return found;
  for (const auto& of_host : ranks) {
    found.push_back(of_host[static_cast<std::size_t>(topology.local_rank)]);
  }
  return found;
}

/// The group over the network with the ranks of a world that create() made.
messages::MessageCommunicator& network_world_of(Communicator& world) {
  if (auto* composed = dynamic_cast<HierarchicalCommunicator*>(&world)) {
    return composed->network_world();
  }
  return dynamic_cast<messages::MessageCommunicator&>(world);
}

}  // namespace

int last_group(Communicator& world) { return network_world_of(world).last_group(); }

std::shared_ptr<Communicator> new_group(Communicator& world, const NewGroup& group) {
  const auto network_world = network_world_of(world).part(group.members, group.number);
  const auto topology = HostTopology::of(*network_world);
  if (topology.has_one_level()) return network_world;
  const auto by_host = ranks_by_host(*network_world);
  const auto& here = by_host[static_cast<std::size_t>(topology.host)];
  auto inside = group.inside;
  inside.watch = true;
  inside.records = false;
  for (const int rank : here) inside.world_ranks.push_back(network_world->world_rank(rank));
  try {
    StageGroups groups;
    groups.intra_node_reduce.ranks = with_world_ranks(inside.world_ranks, [&] {
      return host::create(
          host::rendezvous(detail::concat(group.job, " of host ", topology.host),
                           topology.local_rank, topology.local_size, inside.timeout, group.check),
          topology.local_rank, inside);
    });
    groups.intra_node_gather.ranks = groups.intra_node_reduce.ranks->split(0, topology.local_rank);
    groups.inter_node.ranks = network_world->part(leaders(topology, by_host), group.number + 1);
    groups.all_ranks.ranks = network_world;
    const auto context = std::make_shared<HierarchicalRankContext>(
        network_world, groups.intra_node_reduce.ranks, inside.timeout, inside);
    return std::make_shared<HierarchicalCommunicator>(context, std::move(groups));
  } catch (const std::exception& error) {
    network_world->fail_with(
        detail::failure_of(error));  // members on other hosts wait for this rank
    throw;
  }
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
  const auto topology = HostTopology::of(*network_world);
  if (topology.hosts == topology.size) {
    messages::begin(*network_world, true, by_thread);
    return network_world;
  }

  try {
    // Distinguishes this world from other worlds on this host.
    std::uint64_t token = (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
    network_world->broadcast(&token, 1, DType::i64, 0).wait();
    auto inside = options.inside;
    inside.watch = true;
    inside.records = topology.hosts == 1;
    inside.world_ranks = ranks_by_host(*network_world)[static_cast<std::size_t>(topology.host)];
    const auto memory = with_world_ranks(inside.world_ranks, [&] {
      if (options.host_memory) return options.host_memory;
      const host::LauncherWatch watch(inside.launcher, inside.launcher_name);
      const auto ended = [&]() -> std::optional<std::string> {
        try {
          network_world->make_progress();
        } catch (const CommError& error) {  // a rank has ended
          return error.what();
        }
        return watch.ended();
      };
      return host::rendezvous(detail::concat("hierarchy ", token, " of host ", topology.host),
                              topology.local_rank, topology.local_size, inside.timeout, ended);
    });
    const auto host_world = host::create(memory, topology.local_rank, inside);
    if (topology.hosts == 1) return host_world;

    const auto context = std::make_shared<HierarchicalRankContext>(network_world, host_world,
                                                                   options.network.timeout, inside);
    const auto composed = HierarchicalCommunicator::compose(context, network_world, host_world);
    context->set_recorder(detail::FlightRecorder::create(*composed));
    if (by_thread) context->start_progress_thread();
    return composed;
  } catch (const std::exception& error) {
    auto failure = detail::failure_of(error);
    if (failure.rank < 0) failure.rank = network_world->rank();
    network_world->fail_with(failure);  // ranks of other hosts wait for this rank
    throw;
  }
}

}  // namespace lockstep::hierarchical
