#include "comm/cost/cost.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <vector>

#include "core/system/topology.h"

namespace lockstep::inline v0_2 {
namespace {

// A message within a host is copied into shared memory and out of it: two reads and two writes per
// byte.
constexpr double moved_by_message = 4;

/// The exchange of announcements, with which every collective over MPI begins.
Traffic announced(const Placement& placement) {
  const bool remote = placement.hosts > 1;
  return {.local_messages = remote ? 0.0 : 1.0,
          .remote_messages = remote ? 1.0 : 0.0,
          .messages = placement.ranks - 1.0};
}

/// Every rank sends `bytes` to every other rank, concurrently.
Traffic to_all(const Placement& placement, double bytes) {
  const double most = placement.most_on_host;
  const double others = placement.ranks - 1.0;
  Traffic traffic{.messages = others,
                  .sent = most * (placement.ranks - most) * bytes,
                  .moved = moved_by_message * most * (most - 1) * bytes};
  (placement.hosts > 1 ? traffic.remote_messages : traffic.local_messages) = others > 0 ? 1 : 0;
  return traffic;
}

}  // namespace

Placement Placement::of(std::span<const int> hosts) {
  const auto ranks = hosts.size();
  const int count = ranks == 0 ? 1 : std::ranges::max(hosts) + 1;
  std::vector<int> on_host(static_cast<std::size_t>(count));
  std::vector<int> exits(static_cast<std::size_t>(count));
  Placement placement{.ranks = static_cast<int>(ranks), .hosts = count};
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto host = static_cast<std::size_t>(hosts[rank]);
    ++on_host[host];
    if (hosts[(rank + 1) % ranks] == hosts[rank]) continue;
    ++exits[host];
    ++placement.crossings;
  }
  placement.most_on_host = std::ranges::max(on_host);
  placement.least_on_host = std::ranges::min(on_host);
  placement.exits = std::ranges::max(exits);
  return placement;
}

Placement Placement::uniform(int hosts, int ranks_per_host) {
  return {.ranks = hosts * ranks_per_host,
          .hosts = hosts,
          .most_on_host = ranks_per_host,
          .least_on_host = ranks_per_host,
          .exits = hosts > 1 ? 1 : 0,
          .crossings = hosts > 1 ? hosts : 0};
}

Traffic& Traffic::operator+=(const Traffic& other) {
  synchronizations += other.synchronizations;
  local_messages += other.local_messages;
  remote_messages += other.remote_messages;
  messages += other.messages;
  sent += other.sent;
  moved += other.moved;
  return *this;
}

Traffic operator*(double times, const Traffic& one) {
  return {.synchronizations = times * one.synchronizations,
          .local_messages = times * one.local_messages,
          .remote_messages = times * one.remote_messages,
          .messages = times * one.messages,
          .sent = times * one.sent,
          .moved = times * one.moved};
}

double Costs::seconds(const Traffic& traffic, const Placement& placement) const {
  return between_hosts(traffic) + of_processor(traffic, placement);
}

double Costs::between_hosts(const Traffic& traffic) const {
  return traffic.remote_messages * remote_message + traffic.sent * sent_byte;
}

double Costs::of_processor(const Traffic& traffic, const Placement& placement) const {
  const double of_synchronization =
      synchronization + synchronization_rank * std::max(0, placement.most_on_host - 2);
  return traffic.synchronizations * of_synchronization + traffic.local_messages * local_message +
         traffic.messages * message + traffic.moved * moved_byte;
}

Traffic host_direct(int ranks, double bytes) {
  if (ranks < 2) return {};
  return {.synchronizations = 2, .moved = 2 * ranks * bytes};
}

Traffic mpi_direct(const Placement& placement, double bytes) {
  const double ranks = placement.ranks;
  if (placement.ranks < 2) return {};
  // Each rank reads N inputs of its slice and writes one result.
  const Traffic sums{.moved = placement.most_on_host * (ranks + 1) / ranks * bytes};
  return announced(placement) + 2 * to_all(placement, bytes / ranks) + sums;
}

Traffic mpi_ring(const Placement& placement, double bytes) {
  const double ranks = placement.ranks;
  if (placement.ranks < 2) return {};
  const double steps = 2 * (ranks - 1);
  const double remote = placement.crossings / ranks;
  const double slices = steps / ranks * bytes;  // bytes that a rank sends
  const double within = placement.most_on_host - placement.exits;
  // Each step reads two inputs and writes their sum.
  const double summed = 3 * placement.most_on_host * (ranks - 1) / ranks * bytes;
  return announced(placement) + Traffic{.local_messages = steps * (1 - remote),
                                        .remote_messages = steps * remote,
                                        .messages = steps,
                                        .sent = placement.exits * slices,
                                        .moved = moved_by_message * within * slices + summed};
}

Traffic hierarchical_all_reduce(const Placement& placement, double bytes) {
  if (placement.hosts < 2) return host_direct(placement.ranks, bytes);
  const double shards = placement.least_on_host;
  const auto inside = host_direct(placement.most_on_host, bytes);
  const auto between = mpi_direct(Placement::uniform(placement.hosts, 1), bytes / shards);
  Traffic traffic = inside + between;
  // All shard leaders of a host share its network and memory bandwidth.
  traffic.sent = shards * between.sent;
  traffic.moved = inside.moved + shards * between.moved;
  return traffic;
}

Traffic mpi_all_gather(const Placement& placement, double bytes) {
  if (placement.ranks < 2) return {};
  return announced(placement) + to_all(placement, bytes);
}

Traffic mpi_all_to_all(const Placement& placement, double bytes) {
  return mpi_all_gather(placement, bytes / placement.ranks);
}

}  // namespace lockstep

namespace lockstep::inline v0_2::detail {

std::string this_host() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  // Without /proc, the host name identifies the host.
  if (boot.empty()) boot = host_name();
  std::array<char, 64> network{};
  if (::readlink("/proc/self/ns/net", network.data(), network.size() - 1) < 0) network[0] = '\0';
  return boot + " " + network.data();
}

}  // namespace lockstep::detail
