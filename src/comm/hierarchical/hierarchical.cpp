#include "comm/hierarchical/hierarchical.h"

#include <algorithm>
#include <exception>
#include <random>
#include <vector>

#include "comm/hierarchical/hierarchical_communicator.h"
#include "comm/hierarchical/hierarchical_rank_context.h"
#include "comm/host/rendezvous.h"
#include "comm/waiting.h"
#include "core/text.h"

namespace lockstep::inline v0_2::hierarchical {

std::shared_ptr<Communicator> create(const Options& options) {
  const bool with_thread = mpi::by_thread(options.between_hosts);
  auto between_hosts = options.between_hosts;
  between_hosts.progress = ProgressMode::wait;  // one thread, for both worlds
  const auto flat = mpi::create(between_hosts);
  const auto& hosts = flat->hosts();
  if (std::ranges::max(hosts) + 1 == flat->size()) {
    if (with_thread) mpi::start_thread(*flat);
    return flat;
  }
  const int host = hosts[static_cast<std::size_t>(flat->rank())];
  std::vector<int> names;
  for (int rank = 0; rank < flat->size(); ++rank) {
    if (hosts[static_cast<std::size_t>(rank)] == host) names.push_back(rank);
  }
  const int local_size = static_cast<int>(names.size());
  const auto local_rank = static_cast<int>(std::ranges::find(names, flat->rank()) - names.begin());

  try {
    // Tells this world's memory from that of any other on this host.
    std::uint64_t token = (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
    flat->broadcast(&token, 1, DType::i64, 0).wait();
    auto inside = options.inside;
    inside.watch = true;
    inside.names = names;
    const auto world =
        host::meet(detail::concat("hierarchy ", token, " of host ", host), local_rank, local_size,
                   inside.timeout, {inside.launcher, inside.launcher_name});
    const auto local = host::create(world, local_rank, inside);
    if (local_size == flat->size()) return local;

    const bool fits = detail::fit_cores(local_size, inside.threads_per_rank, inside.cores);
    const auto context = std::make_shared<HierarchicalRankContext>(
        flat, local, std::move(names), options.between_hosts.timeout, fits);
    const auto composed = HierarchicalCommunicator::compose(context, flat, local);
    if (with_thread) context->start_progress_thread();
    return composed;
  } catch (const std::exception& error) {
    flat->fail(error.what());  // the other hosts' ranks wait for this one
    throw;
  }
}

}  // namespace lockstep::hierarchical
