#include "comm/hierarchical/hierarchical_communicator.h"

#include <cmath>
#include <new>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/hierarchical/hierarchical_rank_context.h"
#include "comm/mpi/mpi.h"
#include "comm/split.h"
#include "comm/waiting.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::hierarchical {
namespace {

/// A range of the operation's buffer.
struct Values {
  std::byte* data = nullptr;
  std::size_t count = 0;
};

struct Ratio {
  int numerator = 1;
  int denominator = 1;
};

/// Clips every float32 element to magnitude `most`; 0 disables clipping. NaN stays NaN.
void clamp(const Values& floats, float most) {
  if (most == 0) return;
  auto* values = reinterpret_cast<float*>(floats.data);
  for (std::size_t i = 0; i < floats.count; ++i) {
    // NaN stays.
    values[i] = std::fabs(values[i]) > most ? std::copysign(most, values[i]) : values[i];
  }
}

template <class Value>
void scale_all(const Values& all, Ratio ratio) {
  const Value factor = static_cast<Value>(ratio.numerator) / static_cast<Value>(ratio.denominator);
  auto* values = reinterpret_cast<Value*>(all.data);
  for (std::size_t i = 0; i < all.count; ++i) values[i] *= factor;
}

/// Multiplies every float32 or float64 element by the ratio.
void scale(const Values& all, DType dtype, Ratio ratio) {
  if (ratio.numerator == ratio.denominator) return;
  if (dtype == DType::f32) {
    scale_all<float>(all, ratio);
  } else {
    scale_all<double>(all, ratio);
  }
}

/// A mean is a sum in all stages, and divided by the number of ranks after them.
struct Summed {
  ReduceOp op;
  Ratio to_mean;
};

Summed summed(ReduceOp op, int ranks) {
  if (op != ReduceOp::avg) return {op, {}};
  return {ReduceOp::sum, {1, ranks}};
}

/// The optional arguments of the stages of an operation.
Issue issue_of_stages(const Operation& operation) {
  return {.timeout = operation.timeout, .part_of = std::make_shared<const Operation>(operation)};
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
    std::shared_ptr<HierarchicalRankContext> context, std::shared_ptr<Communicator> flat,
    std::shared_ptr<Communicator> inside, std::vector<int> world_ranks) {
  const auto topology = HostTopology::of(*flat);
  StageCommunicators groups;
  groups.intra_node_gather = inside->split(0, inside->rank());
  groups.inter_node = topology.inter_node(*flat);
  groups.intra_node_reduce = std::move(inside);
  groups.all_ranks = std::move(flat);
  groups.world_ranks = std::move(world_ranks);
  return std::make_shared<HierarchicalCommunicator>(std::move(context), topology,
                                                    std::move(groups));
}

HierarchicalCommunicator::HierarchicalCommunicator(std::shared_ptr<HierarchicalRankContext> context,
                                                   const HostTopology& topology,
                                                   StageCommunicators groups)
    : BackendCommunicator(groups.all_ranks->rank(), groups.all_ranks->size()),
      context_(std::move(context)),
      topology_(topology),
      groups_(std::move(groups)) {
  set_hosts(groups_.all_ranks->hosts());
  context_->add(*this);
}

HierarchicalCommunicator::~HierarchicalCommunicator() {
  if (context_->in_child()) return;
  const auto lock = context_->lock();
  context_->remove(*this);
  groups_ = {};  // under the lock: the progress thread uses their contexts under it
}

std::shared_ptr<std::byte> HierarchicalCommunicator::allocate(std::size_t bytes) {
  return groups_.intra_node_reduce->allocate(bytes);
}

// The ranks of a group share memory if they are on one host.
std::optional<std::uint64_t> HierarchicalCommunicator::place_of(const void* memory) const {
  if (topology_.hosts > 1) return {};
  return groups_.intra_node_reduce->place_of(memory);
}

std::byte* HierarchicalCommunicator::at_place(std::uint64_t place) const {
  if (topology_.hosts > 1) return BackendCommunicator::at_place(place);
  return groups_.intra_node_reduce->at_place(place);
}

std::shared_ptr<Communicator> HierarchicalCommunicator::split(int color, int key) {
  // Splitting the stage groups blocks without advancing other operations. After this barrier all
  // members are in split(), so it cannot deadlock.
  barrier().wait();
  const HierarchicalRankContext::CallGuard guard(*context_);
  return context_->or_fail<CommError>([&]() -> std::shared_ptr<Communicator> {
    const auto flat = groups_.all_ranks->split(color, key);
    const auto inside = groups_.intra_node_reduce->split(color, key);
    if (flat == nullptr) return nullptr;
    return compose(context_, flat, inside, groups_.world_ranks);
  });
}

std::shared_ptr<Communicator> HierarchicalCommunicator::new_group(std::span<const int> members) {
  const std::vector ranks(members.begin(), members.end());
  auto& all = *groups_.all_ranks;
  const auto agreement = [&] {
    const HierarchicalRankContext::CallGuard guard(*context_);
    const auto group = mpi::new_group(all, ranks, mpi::agreement_group);
    return std::make_shared<HierarchicalCommunicator>(context_, HostTopology::of(*group),
                                                      StageCommunicators{.all_ranks = group});
  }();
  // Other operations advance while it waits. After it all members are in new_group(), so what
  // follows can block.
  const int number = detail::agree_on_number(*agreement, mpi::last_group(all));
  // The members on this host, as local ranks of this group and as world ranks.
  std::vector<int> local_ranks, world_ranks;
  for (const int rank : ranks) {
    if (hosts()[static_cast<std::size_t>(rank)] != topology_.host) continue;
    local_ranks.push_back(HostTopology::local_rank_of(*this, rank));
    world_ranks.push_back(world_rank(rank));
  }
  const HierarchicalRankContext::CallGuard guard(*context_);
  return context_->or_fail<CommError>([&]() -> std::shared_ptr<Communicator> {
    return compose(context_, mpi::new_group(all, ranks, number),
                   groups_.intra_node_reduce->new_group(local_ranks), std::move(world_ranks));
  });
}

std::vector<int> HierarchicalCommunicator::first_awaited() const {
  for (const auto& request : requests_) {
    if (request->has_pending_stage()) return request->missing();
  }
  return {};
}

std::vector<int> HierarchicalCommunicator::world_ranks(StageGroup stage_group,
                                                       std::vector<int> ranks) const {
  if (stage_group == StageGroup::all_ranks || stage_group == StageGroup::inter_node) return ranks;
  for (int& rank : ranks) rank = groups_.world_ranks[static_cast<std::size_t>(rank)];
  return ranks;
}

Work HierarchicalCommunicator::begin(Operation&& operation) {
  const HierarchicalRankContext::CallGuard guard(*context_);
  number(operation);
  if (context_->failed()) context_->throw_failure(where(operation.label()));
  operation.group = group_number();
  auto request =
      requests_.emplace_back(std::make_shared<StagedRequest>(*this, std::move(operation)));
  context_->poll();
  if (!request->complete()) context_->wake_thread();
  return Work(std::move(request));
}

void HierarchicalCommunicator::poll() {
  Occupied occupied{};
  for (const auto& request : requests_) request->advance_unless(occupied);
}

std::size_t HierarchicalCommunicator::pending() const {
  std::size_t stages = 0;
  for (const auto& request : requests_) stages += request->stages_left();
  return stages;
}

void HierarchicalCommunicator::release(std::vector<std::shared_ptr<void>>& complete) {
  std::erase_if(requests_, [&](auto& request) {
    if (!request->complete()) return false;
    complete.push_back(std::move(request));
    return true;
  });
}

void HierarchicalCommunicator::drop(std::vector<std::shared_ptr<void>>& pending) {
  pending.insert(pending.end(), requests_.begin(), requests_.end());
  requests_.clear();
}

void HierarchicalCommunicator::check() {
  for (const auto& request : requests_) request->check_stage();
}

/// Three stages of a few bytes take longer than one.
constexpr std::size_t least_gathered_in_shards = 64 << 10;

std::vector<Stage> HierarchicalCommunicator::stages(const Operation& operation) const {
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
  const bool here = topology_.hosts == 1 && groups_.intra_node_reduce != nullptr;
  const auto& whole = here ? groups_.intra_node_reduce : groups_.all_ranks;
  return {{.stage_group = here ? StageGroup::intra_node_reduce : StageGroup::all_ranks,
           .begin = [whole, &operation] { return detail::reissue(*whole, operation); }}};
}

std::vector<Stage> HierarchicalCommunicator::in_shards(const Operation& operation) const {
  const auto element = size_of(operation.dtype);
  const auto shards = Shards::of_cache_lines(topology_, operation.count, element);
  const Values mine{.data = operation.output + shards.own().begin * element,
                    .count = shards.own().length};
  const auto& counts = shards.counts();
  const auto issue = issue_of_stages(operation);
  const auto dtype = operation.dtype;
  const bool average = operation.reduce == ReduceOp::avg;
  const auto [op, to_mean] = summed(operation.reduce, operation.wire ? 1 : size());
  std::byte* data = operation.output;
  const Values whole{.data = data, .count = operation.count};

  // Only the exchange between hosts uses the wire dtype. It sends each host's part of the mean.
  auto wire = operation.wire;
  const float clip = wire ? std::exchange(wire->clip, 0.0f) : 0;
  const Ratio to_mean_of_host = wire ? Ratio{topology_.hosts, size()} : Ratio{};
  const Ratio from_mean_of_host = wire && !average ? Ratio{size(), topology_.hosts} : Ratio{};

  std::vector<Stage> stages;
  stages.push_back({StageGroup::intra_node_reduce, [=, this] {
                      clamp(whole, clip);
                      return groups_.intra_node_reduce->reduce_scatter(data, mine.data, counts,
                                                                       dtype, op, issue);
                    }});
  if (groups_.inter_node != nullptr) {
    stages.push_back(
        {StageGroup::inter_node, [=, this, reduce = operation.reduce] {
           scale(mine, dtype, to_mean_of_host);
           if (wire) {
             return groups_.inter_node->all_reduce(mine.data, mine.count, reduce, *wire, issue);
           }
           return groups_.inter_node->all_reduce(mine.data, mine.count, dtype, op, issue);
         }});
  }
  stages.push_back({StageGroup::intra_node_gather, [=, this] {
                      scale(mine, dtype, from_mean_of_host);
                      scale(mine, dtype, to_mean);
                      return groups_.intra_node_gather->all_gather(mine.data, data, counts, dtype,
                                                                   issue);
                    }});
  return stages;
}

/// As in_shards(), but the leaders of root's host get the sums, and root gathers them. The other
/// ranks' data stay as they are: their shards are summed in other memory.
std::vector<Stage> HierarchicalCommunicator::to_root_in_shards(const Operation& operation) const {
  const auto element = size_of(operation.dtype);
  const auto shards = Shards::of_cache_lines(topology_, operation.count, element);
  const auto own = shards.own();
  const auto& counts = shards.counts();
  const auto issue = issue_of_stages(operation);
  const auto dtype = operation.dtype;
  const auto [op, to_mean] = summed(operation.reduce, size());
  auto* const data = const_cast<std::byte*>(operation.input);
  const int root = operation.peer;
  const bool is_root = rank() == root;
  const int host = hosts()[static_cast<std::size_t>(root)];
  const int root_in_host = HostTopology::local_rank_of(*this, root);
  const auto mine = std::make_shared<std::shared_ptr<std::byte>>();

  std::vector<Stage> stages;
  stages.push_back({StageGroup::intra_node_reduce, [=, this] {
                      *mine = is_root ? std::shared_ptr<std::byte>(std::shared_ptr<void>(),
                                                                   data + own.begin * element)
                                      : groups_.intra_node_reduce->allocate(own.length * element);
                      return groups_.intra_node_reduce->reduce_scatter(data, mine->get(), counts,
                                                                       dtype, op, issue);
                    }});
  if (groups_.inter_node != nullptr) {
    stages.push_back({StageGroup::inter_node, [=, this] {
                        return groups_.inter_node->reduce(mine->get(), own.length, dtype, op, host,
                                                          issue);
                      }});
  }
  if (topology_.host != host) return stages;
  stages.push_back({StageGroup::intra_node_gather, [=, this] {
                      scale({.data = mine->get(), .count = own.length}, dtype, to_mean);
                      return groups_.intra_node_gather->gather(mine->get(), data, counts, dtype,
                                                               root_in_host, issue);
                    }});
  return stages;
}

/// Each leader gets the host's sum of its shard, then of the parts in it that belong to this host,
/// and sends the ranks of this host what is theirs. A host sends the parts of the others once.
std::vector<Stage> HierarchicalCommunicator::to_parts_in_shards(const Operation& operation) const {
  const auto element = size_of(operation.dtype);
  const auto shards = Shards::of_cache_lines(topology_, operation.part_begin(size()), element);
  const auto length = shards.own().length;
  const auto& counts = shards.counts();
  const auto meet = PartsInShards::of(topology_, hosts(), operation, shards);
  const auto issue = issue_of_stages(operation);
  const auto dtype = operation.dtype;
  const auto [op, to_mean] = summed(operation.reduce, size());
  auto* const input = operation.input;
  auto* const output = operation.output;
  const auto sums = std::make_shared<std::unique_ptr<std::byte[]>>();
  const auto own = std::make_shared<std::unique_ptr<std::byte[]>>();

  std::vector<Stage> stages;
  stages.push_back({StageGroup::intra_node_reduce, [=, this] {
                      *sums = temporary(length * element);
                      return groups_.intra_node_reduce->reduce_scatter(input, sums->get(), counts,
                                                                       dtype, op, issue);
                    }});
  if (groups_.inter_node != nullptr) {
    stages.push_back({StageGroup::inter_node, [=, this] {
                        *own = temporary(meet.here.length * element);
                        return groups_.inter_node->reduce_scatter(sums->get(), own->get(),
                                                                  meet.by_host, dtype, op, issue);
                      }});
  }
  stages.push_back({StageGroup::intra_node_gather, [=, this] {
                      scale({.data = own->get(), .count = meet.here.length}, dtype, to_mean);
                      return groups_.intra_node_gather->all_to_all(own->get(), output, meet.by_rank,
                                                                   meet.by_leader, dtype, issue);
                    }});
  return stages;
}

/// The same in the other direction. Each leader gets the parts of its host's ranks in its shard,
/// then those of all hosts. The ranks of a host gather the shards.
std::vector<Stage> HierarchicalCommunicator::from_parts_in_shards(
    const Operation& operation) const {
  const auto element = size_of(operation.dtype);
  const auto shards = Shards::of_cache_lines(topology_, operation.part_begin(size()), element);
  const auto& counts = shards.counts();
  const auto meet = PartsInShards::of(topology_, hosts(), operation, shards);
  const auto issue = issue_of_stages(operation);
  const auto dtype = operation.dtype;
  auto* const input = operation.input;
  auto* const output = operation.output;
  auto* const shard = output + shards.own().begin * element;
  auto* const here = output + meet.here.begin * element;

  std::vector<Stage> stages;
  stages.push_back({StageGroup::intra_node_reduce, [=, this] {
                      return groups_.intra_node_reduce->all_to_all(input, here, meet.by_leader,
                                                                   meet.by_rank, dtype, issue);
                    }});
  if (groups_.inter_node != nullptr) {
    stages.push_back({StageGroup::inter_node, [=, this] {
                        return groups_.inter_node->all_gather(here, shard, meet.by_host, dtype,
                                                              issue);
                      }});
  }
  stages.push_back({StageGroup::intra_node_gather, [=, this] {
                      return groups_.intra_node_gather->all_gather(shard, output, counts, dtype,
                                                                   issue);
                    }});
  return stages;
}

}  // namespace lockstep::hierarchical
