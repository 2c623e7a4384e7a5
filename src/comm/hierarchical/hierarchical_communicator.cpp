#include "comm/hierarchical/hierarchical_communicator.h"

#include <cmath>
#include <exception>
#include <list>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/messages/message_communicator.h"
#include "comm/waiting.h"
#include "core/text.h"
#include "kernels/reduce.h"
#include "lockstep/error.h"

// Note [Order of stages]
// An operation between hosts has up to three stages: a collective inside the host, one between the
// leaders of a shard, and one inside the host again. All members of a group must begin its
// operations in the same order. However, the order in which stages of several operations complete
// differs from rank to rank. Each kind of stage therefore has a group of its own, the stage group.
// In a stage group, stages begin in the order in which their operations were issued: a Turn waits
// until all earlier operations have begun their stage there.
// A wait for one operation advances all of them, because other ranks may wait for this rank's share
// of another operation.

namespace lockstep::inline v0_2::hierarchical {

namespace {

using detail::Task;
using detail::Turn;

/// Clips every float32 element to magnitude `most`; 0 disables clipping. NaN stays NaN.
void clamp(std::byte* data, std::size_t count, float most) {
  if (most == 0) return;
  auto* values = reinterpret_cast<float*>(data);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = std::fabs(values[i]) > most ? std::copysign(most, values[i]) : values[i];
  }
}

/// Multiplies every float32 or float64 element by the factor.
void scale(std::byte* data, std::size_t count, DType dtype, double factor) {
  if (factor != 1) kernels::multiply(dtype, factor, data, data, count);
}

/// A mean is a sum in all stages, and multiplied by the second value after them.
std::pair<ReduceOp, double> summed(ReduceOp op, int ranks) {
  if (op != ReduceOp::avg) return {op, 1};
  return {ReduceOp::sum, 1.0 / ranks};
}

/// The optional arguments of the stages of an operation.
Issue issue_of_stages(const Operation& operation) {
  return {.timeout = operation.issue.timeout,
          .part_of = std::make_shared<const Operation>(operation)};
}

/// The ranks that lead this rank's shard, in the order of their hosts; none if it does not lead
/// one.
std::vector<int> leaders(const Communicator& group) {
  const auto topology = HostTopology::of(group);
  if (topology.local_rank >= topology.shards) return {};
  std::vector<int> found(static_cast<std::size_t>(topology.hosts));
  for (int rank = 0; rank < group.size(); ++rank) {
    if (HostTopology::local_rank_of(group, rank) != topology.local_rank) continue;
    found[static_cast<std::size_t>(group.hosts()[static_cast<std::size_t>(rank)])] = rank;
  }
  return found;
}

/// Ordinary memory, which the process can return, unlike the group's.
std::unique_ptr<std::byte[]> temporary(std::size_t bytes) {
  std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[bytes]);
  if (memory != nullptr) return memory;
  throw CommError(detail::concat("reduce_scatter between hosts: got no memory for ", bytes,
                                 " bytes of sums: free memory on this host"));
}

}  // namespace

std::shared_ptr<HierarchicalCommunicator> HierarchicalCommunicator::compose(
    std::shared_ptr<detail::RankContext> context, std::shared_ptr<Communicator> network_world,
    std::shared_ptr<Communicator> inside) {
  StageGroups groups;
  groups.intra_node_gather.ranks = inside->split(0, inside->rank());
  auto& all = dynamic_cast<messages::MessageCommunicator&>(*network_world);
  // The groups of all shards have the number after that of the whole group.
  const int number = all.message_group().shown_number() + messages::agreement_group + 1;
  groups.inter_node.ranks = all.part(leaders(all), number);
  groups.intra_node_reduce.ranks = std::move(inside);
  groups.all_ranks.ranks = std::move(network_world);
  return std::make_shared<HierarchicalCommunicator>(std::move(context), std::move(groups));
}

HierarchicalCommunicator::HierarchicalCommunicator(std::shared_ptr<detail::RankContext> context,
                                                   StageGroups groups)
    : TaskCommunicator(std::move(context), groups.all_ranks.ranks->rank(),
                       groups.all_ranks.ranks->size()),
      topology_(HostTopology::of(*groups.all_ranks.ranks)),
      groups_(std::move(groups)) {
  set_hosts(network_world().hosts());
  this->context().add(*this);
}

HierarchicalCommunicator::~HierarchicalCommunicator() {
  if (context().in_child()) return;
  const auto lock = context().lock();
  context().remove(*this);
  groups_ = {};  // under the lock: the progress thread uses their contexts under it
}

messages::MessageCommunicator& HierarchicalCommunicator::network_world() const {
  return dynamic_cast<messages::MessageCommunicator&>(*groups_.all_ranks.ranks);
}

std::shared_ptr<std::byte> HierarchicalCommunicator::allocate(std::size_t bytes) {
  return groups_.intra_node_reduce.ranks->allocate(bytes);
}

// The ranks of a group share memory if they are on one host.
std::optional<std::uint64_t> HierarchicalCommunicator::place_of(const void* memory) const {
  if (topology_.hosts > 1) return {};
  return groups_.intra_node_reduce.ranks->place_of(memory);
}

std::byte* HierarchicalCommunicator::at_place(std::uint64_t place) const {
  if (topology_.hosts > 1) return BackendCommunicator::at_place(place);
  return groups_.intra_node_reduce.ranks->at_place(place);
}

std::shared_ptr<Communicator> HierarchicalCommunicator::split(int color, int key) {
  // Splitting the stage groups blocks without advancing other operations. After this barrier all
  // members are in split(), so it cannot deadlock.
  barrier().wait();
  const auto context = shared_context();
  const detail::RankContext::CallGuard guard(*context);
  return context->or_fail<CommError>([&]() -> std::shared_ptr<Communicator> {
    const auto over_network = network_world().split(color, key);
    const auto inside = groups_.intra_node_reduce.ranks->split(color, key);
    return over_network == nullptr ? nullptr : compose(context, over_network, inside);
  });
}

std::shared_ptr<Communicator> HierarchicalCommunicator::new_group(std::span<const int> members) {
  const std::vector ranks(members.begin(), members.end());
  auto& all = network_world();
  const auto context = shared_context();
  const auto agreement = [&] {
    const detail::RankContext::CallGuard guard(*context);
    StageGroups groups;
    groups.all_ranks.ranks = all.part(ranks, messages::agreement_group);
    return std::make_shared<HierarchicalCommunicator>(context, std::move(groups));
  }();
  // Other operations advance while it waits. After it all members are in new_group(), so what
  // follows can block.
  const int number = detail::agree_on_number(*agreement, all.last_group());
  std::vector<int> local_ranks;  // of the members on this host
  for (const int rank : ranks) {
    if (hosts()[static_cast<std::size_t>(rank)] != topology_.host) continue;
    local_ranks.push_back(HostTopology::local_rank_of(*this, rank));
  }
  const detail::RankContext::CallGuard guard(*context);
  return context->or_fail<CommError>([&]() -> std::shared_ptr<Communicator> {
    return compose(context, all.part(ranks, number),
                   groups_.intra_node_reduce.ranks->new_group(local_ranks));
  });
}

Work HierarchicalCommunicator::begin(Operation&& operation) {
  return Work(begin_task(std::move(operation),
                         [this](detail::TaskRequest& request) { return task(request); }));
}

/// Three stages of a few bytes take longer than one.
constexpr std::size_t least_gathered_in_shards = 64 << 10;

Task HierarchicalCommunicator::task(detail::TaskRequest& request) {
  const auto& operation = request.operation();
  if (operation.issue.source.content == Source::Content::refusal) return refusal(operation);
  const bool floats = operation.dtype == DType::f32 || operation.dtype == DType::f64;
  if (floats && topology_.hosts > 1) {
    if (operation.collective == Collective::all_reduce) return in_shards(operation);
    if (operation.collective == Collective::reduce) return to_root_in_shards(operation);
    if (operation.collective == Collective::reduce_scatter && topology_.has_consecutive_ranks)
      return to_parts_in_shards(operation);
  }
  if (operation.collective == Collective::all_gather && topology_.hosts > 1 &&
      topology_.has_consecutive_ranks &&
      operation.part_begin(size()) * size_of(operation.dtype) >= least_gathered_in_shards) {
    return from_parts_in_shards(operation);
  }
  const bool here = topology_.hosts == 1 && groups_.intra_node_reduce.ranks != nullptr;
  return whole(request, here ? groups_.intra_node_reduce : groups_.all_ranks);
}

Task HierarchicalCommunicator::whole(detail::TaskRequest& request, StageGroup& group) {
  Turn turn(group.turns);
  co_await turn;
  request.set_source(co_await group.ranks->reissue(request.operation()));
}

/// The other ranks may wait in any stage of the operation that this rank refused.
Task HierarchicalCommunicator::refusal(const Operation& operation) {
  std::list<std::pair<Communicator&, Turn>> stages;
  for (auto* group : {&groups_.all_ranks, &groups_.intra_node_reduce, &groups_.inter_node,
                      &groups_.intra_node_gather}) {
    if (group->ranks != nullptr) stages.emplace_back(*group->ranks, group->turns);
  }
  std::vector<Work> works;
  try {
    for (auto& [ranks, turn] : stages) {
      co_await turn;
      works.push_back(ranks.reissue(operation));
    }
    for (auto& work : works) co_await std::move(work);
  } catch (const std::exception&) {
    // The failure of the world is this one, and not the end of the other Works.
    context().or_fail<std::exception>([] { throw; });
  }
}

Task HierarchicalCommunicator::in_shards(const Operation& operation) {
  Turn reduce(groups_.intra_node_reduce.turns);
  Turn exchange(groups_.inter_node.turns);
  Turn gather(groups_.intra_node_gather.turns);
  const auto element = size_of(operation.dtype);
  const auto shards = Shards::of_cache_lines(topology_, operation.count, element);
  auto* const mine = operation.output + shards.own().begin * element;
  const auto count = shards.own().length;
  const auto issue = issue_of_stages(operation);
  const auto dtype = operation.dtype;
  const auto [op, to_mean] = summed(operation.reduce, operation.wire ? 1 : size());

  // Only the exchange between hosts uses the wire dtype. It sends each host's part of the mean.
  auto wire = operation.wire;
  const float clip = wire ? std::exchange(wire->clip, 0.0f) : 0;

  co_await reduce;
  clamp(operation.output, operation.count, clip);
  co_await groups_.intra_node_reduce.ranks->reduce_scatter(operation.output, mine, shards.counts(),
                                                           dtype, op, issue);
  if (auto* const leaders = groups_.inter_node.ranks.get()) {
    co_await exchange;
    if (wire) scale(mine, count, dtype, static_cast<double>(topology_.hosts) / size());
    auto exchanged = wire ? leaders->all_reduce(mine, count, operation.reduce, *wire, issue)
                          : leaders->all_reduce(mine, count, dtype, op, issue);
    co_await std::move(exchanged);
  }
  co_await gather;
  if (wire && operation.reduce != ReduceOp::avg) {
    scale(mine, count, dtype, topology_.ranks_per_host());
  }
  scale(mine, count, dtype, to_mean);
  co_await groups_.intra_node_gather.ranks->all_gather(mine, operation.output, shards.counts(),
                                                       dtype, issue);
}

/// As in_shards(), but the leaders of root's host get the sums, and root gathers them. The other
/// ranks' data stay as they are: their shards are summed in other memory.
Task HierarchicalCommunicator::to_root_in_shards(const Operation& operation) {
  const int root = operation.peer;
  const int host = hosts()[static_cast<std::size_t>(root)];
  Turn reduce(groups_.intra_node_reduce.turns);
  Turn exchange(groups_.inter_node.turns);
  std::optional<Turn> gather;
  if (topology_.host == host) gather.emplace(groups_.intra_node_gather.turns);
  const auto element = size_of(operation.dtype);
  const auto shards = Shards::of_cache_lines(topology_, operation.count, element);
  const auto own = shards.own();
  const auto issue = issue_of_stages(operation);
  const auto dtype = operation.dtype;
  const auto [op, to_mean] = summed(operation.reduce, size());
  auto* const data = const_cast<std::byte*>(operation.input);

  co_await reduce;
  const auto mine = rank() == root ? std::shared_ptr<std::byte>(std::shared_ptr<void>(),
                                                                data + own.begin * element)
                                   : allocate(own.length * element);
  co_await groups_.intra_node_reduce.ranks->reduce_scatter(data, mine.get(), shards.counts(), dtype,
                                                           op, issue);
  if (auto* const leaders = groups_.inter_node.ranks.get()) {
    co_await exchange;
    co_await leaders->reduce(mine.get(), own.length, dtype, op, host, issue);
  }
  if (!gather) co_return;
  co_await *gather;
  scale(mine.get(), own.length, dtype, to_mean);
  co_await groups_.intra_node_gather.ranks->gather(mine.get(), data, shards.counts(), dtype,
                                                   HostTopology::local_rank_of(*this, root), issue);
}

/// Each leader gets the host's sum of its shard, then of the parts in it that belong to this host,
/// and sends the ranks of this host what is theirs. A host sends the parts of the others once.
Task HierarchicalCommunicator::to_parts_in_shards(const Operation& operation) {
  Turn reduce(groups_.intra_node_reduce.turns);
  Turn exchange(groups_.inter_node.turns);
  Turn scatter(groups_.intra_node_gather.turns);
  const auto element = size_of(operation.dtype);
  const auto shards = Shards::of_cache_lines(topology_, operation.part_begin(size()), element);
  const auto meet = PartsInShards::of(topology_, hosts(), operation, shards);
  const auto issue = issue_of_stages(operation);
  const auto dtype = operation.dtype;
  const auto [op, to_mean] = summed(operation.reduce, size());

  co_await reduce;
  auto sums = temporary(shards.own().length * element);
  co_await groups_.intra_node_reduce.ranks->reduce_scatter(operation.input, sums.get(),
                                                           shards.counts(), dtype, op, issue);
  std::unique_ptr<std::byte[]> own;
  if (auto* const leaders = groups_.inter_node.ranks.get()) {
    co_await exchange;
    own = temporary(meet.here.length * element);
    co_await leaders->reduce_scatter(sums.get(), own.get(), meet.by_host, dtype, op, issue);
  }
  co_await scatter;
  scale(own.get(), meet.here.length, dtype, to_mean);
  co_await groups_.intra_node_gather.ranks->all_to_all(own.get(), operation.output, meet.by_rank,
                                                       meet.by_leader, dtype, issue);
}

/// The same in the other direction. Each leader gets the parts of its host's ranks in its shard,
/// then those of all hosts. The ranks of a host gather the shards.
Task HierarchicalCommunicator::from_parts_in_shards(const Operation& operation) {
  Turn collect(groups_.intra_node_reduce.turns);
  Turn exchange(groups_.inter_node.turns);
  Turn gather(groups_.intra_node_gather.turns);
  const auto element = size_of(operation.dtype);
  const auto shards = Shards::of_cache_lines(topology_, operation.part_begin(size()), element);
  const auto meet = PartsInShards::of(topology_, hosts(), operation, shards);
  const auto issue = issue_of_stages(operation);
  const auto dtype = operation.dtype;
  auto* const shard = operation.output + shards.own().begin * element;
  auto* const here = operation.output + meet.here.begin * element;

  co_await collect;
  co_await groups_.intra_node_reduce.ranks->all_to_all(operation.input, here, meet.by_leader,
                                                       meet.by_rank, dtype, issue);
  if (auto* const leaders = groups_.inter_node.ranks.get()) {
    co_await exchange;
    co_await leaders->all_gather(here, shard, meet.by_host, dtype, issue);
  }
  co_await gather;
  co_await groups_.intra_node_gather.ranks->all_gather(shard, operation.output, shards.counts(),
                                                       dtype, issue);
}

}  // namespace lockstep::hierarchical
