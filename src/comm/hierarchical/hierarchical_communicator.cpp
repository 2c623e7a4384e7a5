#include "comm/hierarchical/hierarchical_communicator.h"

#include <algorithm>
#include <utility>

#include "comm/hierarchical/slices.h"
#include "comm/reissue.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::hierarchical {

std::shared_ptr<HierarchicalCommunicator> HierarchicalCommunicator::compose(
    std::shared_ptr<HierarchicalRankContext> context, std::shared_ptr<Communicator> flat,
    std::shared_ptr<Communicator> inside) {
  const auto& hosts = flat->hosts();
  const int host = hosts[static_cast<std::size_t>(flat->rank())];
  std::vector<int> ranks(static_cast<std::size_t>(std::ranges::max(hosts) + 1));
  for (const int one : hosts) ++ranks[static_cast<std::size_t>(one)];

  Parts parts;
  parts.flat = std::move(flat);
  parts.down = std::move(inside);
  parts.hosts = static_cast<int>(ranks.size());
  parts.carriers = std::ranges::min(ranks);
  parts.up = parts.down->split(0, parts.down->rank());
  const int slice = parts.down->rank();
  parts.across = parts.flat->split(slice < parts.carriers ? slice : -1, host);
  return std::make_shared<HierarchicalCommunicator>(std::move(context), std::move(parts));
}

HierarchicalCommunicator::HierarchicalCommunicator(std::shared_ptr<HierarchicalRankContext> context,
                                                   Parts parts)
    : BackendCommunicator(parts.flat->rank(), parts.flat->size()),
      context_(std::move(context)),
      parts_(std::move(parts)) {
  set_hosts(parts_.flat->hosts());
  context_->add(*this);
}

HierarchicalCommunicator::~HierarchicalCommunicator() {
  if (context_->in_child()) return;
  const auto lock = context_->hold();
  context_->remove(*this);
}

std::shared_ptr<std::byte> HierarchicalCommunicator::allocate(std::size_t bytes) {
  return parts_.down->allocate(bytes);
}

std::shared_ptr<Communicator> HierarchicalCommunicator::split(int color, int key) {
  // Splitting the parts advances nothing else; from here on it depends on members only, and all of
  // them are here.
  barrier().wait();
  const HierarchicalRankContext::Use use(*context_);
  return context_->or_fail([&]() -> std::shared_ptr<Communicator> {
    const auto flat = parts_.flat->split(color, key);
    const auto inside = parts_.down->split(color, key);
    if (flat == nullptr) return nullptr;
    return compose(context_, flat, inside);
  });
}

std::vector<int> HierarchicalCommunicator::holding_up() const {
  for (const auto& request : requests_) {
    if (request->under_way()) return request->missing();
  }
  return {};
}

std::vector<int> HierarchicalCommunicator::named(StageGroup stage_group,
                                                 std::vector<int> ranks) const {
  if (stage_group == StageGroup::all_ranks || stage_group == StageGroup::inter_node) return ranks;
  for (int& rank : ranks) rank = context_->names()[static_cast<std::size_t>(rank)];
  return ranks;
}

Work HierarchicalCommunicator::begin(Operation&& operation) {
  const HierarchicalRankContext::Use use(*context_);
  number(operation);
  if (context_->failed()) context_->throw_failure(where(operation.label()));
  auto request = std::make_shared<StagedRequest>(*this, std::move(operation));
  requests_.push_back(request);
  context_->poll();
  if (!request->complete()) context_->wake_thread();
  return Work(std::move(request));
}

void HierarchicalCommunicator::poll() {
  Taken taken{};
  for (const auto& request : requests_) request->advance_unless(taken);
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

std::vector<Stage> HierarchicalCommunicator::stages(const Operation& operation) const {
  const bool floats = operation.dtype == DType::f32 || operation.dtype == DType::f64;
  if (operation.collective == Collective::all_reduce && floats && parts_.hosts > 1) {
    return in_slices(operation);
  }
  const bool here = parts_.hosts == 1;
  const auto& whole = here ? parts_.down : parts_.flat;
  return {{.stage_group = here ? StageGroup::intra_node_reduce : StageGroup::all_ranks,
           .begin = [whole, &operation] { return detail::reissue(*whole, operation); }}};
}

std::vector<Stage> HierarchicalCommunicator::in_slices(const Operation& operation) const {
  const Slices slices(operation, parts_.carriers, parts_.down->size());
  const auto mine = slices.of(parts_.down->rank());
  const auto counts = slices.counts();
  const Issue issue{.timeout = operation.timeout,
                    .part_of = std::make_shared<const Operation>(operation)};
  const auto dtype = operation.dtype;
  const bool average = operation.reduce == ReduceOp::avg;
  const auto op = average ? ReduceOp::sum : operation.reduce;
  std::byte* data = operation.output;
  const Slice whole{.data = data, .count = operation.count};

  // Only the exchange between hosts uses the wire dtype. It sends each host's part of the mean.
  auto wire = operation.wire;
  const float clip = wire ? std::exchange(wire->clip, 0.0f) : 0;
  const Ratio to_mean_of_host = wire ? Ratio{parts_.hosts, size()} : Ratio{};
  const Ratio from_mean_of_host = wire && !average ? Ratio{size(), parts_.hosts} : Ratio{};
  const Ratio to_mean = average && !wire ? Ratio{1, size()} : Ratio{};

  std::vector<Stage> stages;
  stages.push_back({StageGroup::intra_node_reduce, [=, this] {
                      clamp(whole, clip);
                      return parts_.down->reduce_scatter(data, mine.data, counts, dtype, op, issue);
                    }});
  if (parts_.across != nullptr) {
    stages.push_back({StageGroup::inter_node, [=, this, reduce = operation.reduce] {
                        scale(mine, dtype, to_mean_of_host);
                        if (wire) {
                          return parts_.across->all_reduce(mine.data, mine.count, reduce, *wire,
                                                           issue);
                        }
                        return parts_.across->all_reduce(mine.data, mine.count, dtype, op, issue);
                      }});
  }
  stages.push_back({StageGroup::intra_node_gather, [=, this] {
                      scale(mine, dtype, from_mean_of_host);
                      scale(mine, dtype, to_mean);
                      return parts_.up->all_gather(mine.data, data, counts, dtype, issue);
                    }});
  return stages;
}

}  // namespace lockstep::hierarchical
