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
#include "comm/tasks/task_communicator.h"
#include "comm/waiting.h"
#include "core/failure.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::hierarchical {
namespace {

/// Checks of other ranks cost system calls in both worlds, so they are rare.
detail::WaitPolicy policy(bool fits) {
  return {.spins = fits ? 1000 : 0, .between_checks = detail::yield_time};
}

/// One rank's state in a hierarchical world, composed of the host's world and the world over the
/// network.
class HierarchicalRankContext final : public detail::ComposedRankContext {
 public:
  /// over_network and of_host are the world over the network and the world of this host, from which
  /// all groups are split. fits: every rank of this host has cores of its own.
  HierarchicalRankContext(const std::shared_ptr<Communicator>& over_network,
                          std::shared_ptr<Communicator> of_host, std::chrono::milliseconds timeout,
                          bool fits)
      : ComposedRankContext({.backend = "hierarchical",
                             .rank = over_network->world_rank(over_network->rank()),
                             .timeout = timeout,
                             .policy = policy(fits),
                             .has_mutex = true},
                            {std::move(of_host), over_network}) {}
  ~HierarchicalRankContext() { stop_thread(); }

 private:
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
    auto& over_network = static_cast<detail::BackendCommunicator&>(*worlds().back()).context();
    const auto guard = over_network.lock();
    return over_network.failed() ? over_network.first_failure() : ComposedRankContext::failure();
  }

  unsigned polls_ = 0;
};

/// Runs fn. Its errors number the ranks of this host from 0; converts their rank to a world rank,
/// and adds the world ranks of this host to the text.
template <class Fn>
auto with_world_ranks(const std::vector<int>& world_ranks, const Fn& fn) {
  const auto text = [&](const CommError& error) {
    return detail::concat(detail::rank_list(world_ranks),
                          " of the world, numbered from 0 on their host: ", error.what());
  };
  const auto details = [&](const CommError& error) {
    const int rank = error.rank();
    return ErrorDetails{.rank = rank < 0 ? rank : world_ranks.at(static_cast<std::size_t>(rank)),
                        .operation = error.operation()};
  };
  try {
    return fn();
  } catch (const TimeoutError& error) {
    throw TimeoutError(text(error), details(error));
  } catch (const CommError& error) {
    throw CommError(text(error), details(error));
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
Communicator& over_network(Communicator& world) {
  auto* composed = dynamic_cast<HierarchicalCommunicator*>(&world);
  return composed != nullptr ? composed->over_network() : world;
}

}  // namespace

int last_group(const Communicator& world) {
  const auto* composed = dynamic_cast<const HierarchicalCommunicator*>(&world);
  return messages::last_group(composed != nullptr ? composed->over_network() : world);
}

std::shared_ptr<Communicator> new_group(Communicator& world, const NewGroup& group) {
  const auto flat = messages::new_group(over_network(world), group.members, group.number);
  const auto topology = HostTopology::of(*flat);
  if (topology.has_one_level()) return flat;
  const auto by_host = ranks_by_host(*flat);
  const auto& here = by_host[static_cast<std::size_t>(topology.host)];
  auto inside = group.inside;
  inside.watch = true;
  inside.records = false;
  for (const int rank : here) inside.world_ranks.push_back(flat->world_rank(rank));
  try {
    StageGroups groups;
    groups.intra_node_reduce.ranks = with_world_ranks(inside.world_ranks, [&] {
      return host::create(
          host::rendezvous(detail::concat(group.job, " of host ", topology.host),
                           topology.local_rank, topology.local_size, inside.timeout, group.check),
          topology.local_rank, inside);
    });
    groups.intra_node_gather.ranks = groups.intra_node_reduce.ranks->split(0, topology.local_rank);
    groups.inter_node.ranks =
        messages::new_group(*flat, leaders(topology, by_host), group.number + 1);
    groups.all_ranks.ranks = flat;
    const bool fits = detail::fit_cores(topology.local_size, inside.threads_per_rank, inside.cores);
    const auto context = std::make_shared<HierarchicalRankContext>(
        flat, groups.intra_node_reduce.ranks, inside.timeout, fits);
    return std::make_shared<HierarchicalCommunicator>(context, topology, std::move(groups));
  } catch (const std::exception& error) {
    flat->fail_with(detail::failure_of(error));  // members on other hosts wait for this rank
    throw;
  }
}

std::shared_ptr<Communicator> create_over_mpi(const mpi::Options& between_hosts,
                                              const host::Options& inside) {
  const auto make = [&](const messages::Options& flat) {
    return mpi::create({flat, between_hosts.expected_size});
  };
  return create({.make_flat = make,
                 .between_hosts = between_hosts,
                 .by_thread = mpi::by_thread(between_hosts),
                 .inside = inside});
}

std::shared_ptr<Communicator> create(const Options& options) {
  const bool with_thread = options.by_thread;
  auto between_hosts = options.between_hosts;
  between_hosts.progress = ProgressMode::wait;  // one progress thread serves both worlds
  between_hosts.records = false;                // the outermost world of the rank records
  const auto flat = options.make_flat(between_hosts);
  const auto& hosts = flat->hosts();
  if (std::ranges::max(hosts) + 1 == flat->size()) {
    messages::begin(*flat, true, with_thread);
    return flat;
  }
  const int host = hosts[static_cast<std::size_t>(flat->rank())];
  const auto world_ranks = ranks_by_host(*flat)[static_cast<std::size_t>(host)];
  const int local_size = static_cast<int>(world_ranks.size());
  const int local_rank = HostTopology::local_rank_of(*flat, flat->rank());

  try {
    // Distinguishes this world from other worlds on this host.
    std::uint64_t token = (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
    flat->broadcast(&token, 1, DType::i64, 0).wait();
    auto inside = options.inside;
    inside.watch = true;
    inside.records = local_size == flat->size();
    inside.world_ranks = world_ranks;
    const auto world = with_world_ranks(world_ranks, [&] {
      if (options.world_of_host) return options.world_of_host;
      const host::LauncherWatch watch(inside.launcher, inside.launcher_name);
      const auto ended = [&]() -> std::optional<std::string> {
        try {
          flat->make_progress();
        } catch (const CommError& error) {  // a rank has ended
          return error.what();
        }
        return watch.ended();
      };
      return host::rendezvous(detail::concat("hierarchy ", token, " of host ", host), local_rank,
                              local_size, inside.timeout, ended);
    });
    const auto local = host::create(world, local_rank, inside);
    if (local_size == flat->size()) return local;

    const bool fits = detail::fit_cores(local_size, inside.threads_per_rank, inside.cores);
    const auto context =
        std::make_shared<HierarchicalRankContext>(flat, local, options.between_hosts.timeout, fits);
    const auto composed = HierarchicalCommunicator::compose(context, flat, local);
    context->set_recorder(detail::FlightRecorder::create(*composed));
    if (with_thread) context->start_progress_thread();
    return composed;
  } catch (const std::exception& error) {
    auto failure = detail::failure_of(error);
    if (failure.rank < 0) failure.rank = flat->rank();
    flat->fail_with(failure);  // ranks of other hosts wait for this rank
    throw;
  }
}

}  // namespace lockstep::hierarchical
