#include "parallel/buckets/bucket_reducers.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "comm/communicator.h"
#include "comm/hierarchical/host_topology.h"
#include "comm/waiting.h"
#include "device/device_communicator.h"
#include "lockstep/error.h"
#include "profile/group_statistics.h"
#include "sync/between_hosts.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// The residual of each slice; undefined where the exchange has none.
std::vector<at::Tensor> residuals_of(const Exchange& exchange, const Bucket& bucket) {
  const auto state = exchange.state();
  std::vector<at::Tensor> residuals;
  for (const auto& slice : bucket.slices()) {
    const auto found = state.find(slice.name + ".residual");
    const bool has_residual = found != state.end() && found->second.sizes() == slice.values.sizes();
    residuals.push_back(has_residual ? found->second : at::Tensor());
  }
  return residuals;
}

/// Whether every slice has a residual.
bool have_residuals(const std::vector<at::Tensor>& residuals, const Bucket& bucket) {
  const auto dtype = bucket.values().scalar_type();
  return (dtype == at::kFloat || dtype == at::kDouble) &&
         std::ranges::all_of(residuals, [](const auto& residual) { return residual.defined(); });
}

/// Whether the parts of a mean have the values of the whole mean, and take fewer bytes. On hosts
/// with several ranks, an all_reduce rounds only between hosts, and sends each host's sum once. A
/// reduce_scatter does the latter only with consecutive ranks on each host.
bool can_average_parts(const Strategy& strategy, const BucketReducer& reducer) {
  if (!reducer.exchange->has_parts() || reducer.has_residual()) return false;
  const auto topology = hierarchical::HostTopology::of(reducer.bucket.group().communicator());
  if (topology.has_one_level()) return true;
  return topology.has_consecutive_ranks && strategy.text() == AllReduce{}.text();
}

/// Copies a bucket's values back into its parameters.
void unpack_parameters(const Bucket& bucket) {
  for (const auto& slice : bucket.slices()) slice.parameter.copy_(slice.values);
}

}  // namespace

std::optional<device::CommStream> comm_stream_of(const Group& group) {
  const auto* ranks = dynamic_cast<const device::DeviceCommunicator*>(&group.communicator());
  if (ranks == nullptr) return std::nullopt;
  return ranks->context().stream();
}

void order(const GradientStreams& earlier, const c10::Stream& later) {
  for (const auto& stream : earlier) device::CommStream::order(stream, later);
}

CommStreamScope::CommStreamScope(const std::optional<device::CommStream>& comm) {
  if (!comm) return;
  caller_ = comm->current();
  guard_.emplace(comm->stream());
}

CommStreamScope::CommStreamScope(const std::optional<device::CommStream>& comm,
                                 const GradientStreams& gradients)
    : CommStreamScope(comm) {
  if (!comm) return;
  device::CommStream::order(*caller_, comm->stream());
  order(gradients, comm->stream());
}

void CommStreamScope::block_caller() const {
  if (guard_) device::CommStream::order(guard_->current_stream(), *caller_);
}

ExchangeRound::ExchangeRound(BucketReducers& reducers, SyncTarget target, std::int64_t step)
    : reducers_(reducers), target_(target), step_(step) {
  entries_.reserve(reducers.size());
}

void ExchangeRound::begin_next() {
  const CommStreamScope on_comm_stream(reducers_.comm_stream_);
  const auto position = entries_.size();
  const auto index = reducers_.index_at(position);
  entries_.emplace_back();
  next_in_slot_ = 0;
  if (reducers_.target(index, step_) != target_) return;
  auto& reducer = reducers_[index];
  auto& bucket = target_ == SyncTarget::gradients ? reducer.bucket : *reducer.parameters;
  entries_.back().task = reducers_.product(index) == Product::part
                             ? reducer.exchange->exchange_part(
                                   step_, bucket, reducer.shard->begin_exchange(), reducers_.group_)
                             : reducer.exchange->exchange(step_, bucket, reducers_.group_);
  ++begun_;
  advance(position);
}

bool ExchangeRound::may_begin() {
  const auto& ranks = reducers_.group_.communicator();
  return !(reducers_.comm_stream() && device::DeviceCommunicator::launched_elsewhere(ranks)) &&
         run_slot(Blocking::no);
}

/// Whether a slot advances the exchange at a position. Slots after the last bucket advance all.
bool ExchangeRound::advances_in(std::size_t slot, std::size_t position) const {
  const auto& entry = entries_[position];
  if (entry.task.finished() && !entry.work.pending()) return false;
  if (slot >= reducers_.size()) return true;
  return advances_in_slot(slot, position) && !reducers_.is_all_reduce(reducers_.index_at(position));
}

/// Advances the exchanges of the current slot. Returns false when one would block.
bool ExchangeRound::run_slot(Blocking blocking) {
  if (entries_.empty()) return true;
  const CommStreamScope on_comm_stream(reducers_.comm_stream_);
  const auto slot = entries_.size() - 1;
  for (; next_in_slot_ < slot; ++next_in_slot_) {
    if (!advances_in(slot, next_in_slot_)) continue;
    if (blocking == Blocking::no && !entries_[next_in_slot_].work.ready()) return false;
    entries_[next_in_slot_].work.wait();
    advance(next_in_slot_);
  }
  return true;
}

void ExchangeRound::advance(std::size_t position) {
  auto& entry = entries_[position];
  try {
    entry.work =
        reducers_.advance(reducers_.index_at(position), target_, entry.task, entry.stage++);
  } catch (const InvalidArgument&) {
    // Every rank has this error here, so the other exchanges can be completed, and the group stays
    // usable.
    if (error_ == nullptr) error_ = std::current_exception();
  }
}

std::exception_ptr ExchangeRound::complete() {
  const CommStreamScope on_comm_stream(reducers_.comm_stream_);
  while (entries_.size() < reducers_.size()) {
    wait_to_begin();
    begin_next();
  }
  wait_to_begin();
  for (bool some = true; some;) {
    some = false;
    for (std::size_t position = 0; position < entries_.size(); ++position) {
      if (!advances_in(reducers_.size(), position)) continue;
      entries_[position].work.wait();
      advance(position);
      some = true;
    }
  }
  return error_;
}

BucketReducers::BucketReducers(std::span<const NamedTensor> parameters, const Group& group,
                               BucketCaps caps, ParameterStrategies strategies, const Source& owner,
                               std::optional<PartMemory> parts)
    : group_(group),
      comm_stream_(comm_stream_of(group)),
      owner_(owner),
      strategies_(std::move(strategies)),
      buckets_of_strategy_(strategies_.size()) {
  std::vector<ParameterSpec> specs;
  for (const auto& [name, tensor] : parameters) {
    specs.push_back({.numel = static_cast<std::size_t>(tensor.numel()),
                     .dtype = tensor.scalar_type(),
                     .strategy = strategies_.index_of(name)});
  }
  const bool is_transient = parts == PartMemory::own;
  const auto plan = bucket_plan(specs, is_transient ? TransientMemory::limited(caps) : caps);
  if (is_transient) memory_.emplace(plan, group_);
  reducers_.reserve(plan.size());
  for (const auto& planned : plan) {
    std::vector<Bucket::Slice> slices;
    for (const auto& [parameter, offset] : planned.slices) {
      slices.push_back({.name = parameters[parameter].name,
                        .parameter = parameters[parameter].tensor,
                        .offset = offset});
    }
    const auto index = reducers_.size();
    const auto values =
        memory_ ? memory_->values(index, planned) : bucket_values(planned, parts, group_);
    auto& reducer =
        reducers_.emplace_back(make({index, values, std::move(slices), group_}, planned.strategy));
    if (is_transient || (parts && can_average_parts(strategies_[planned.strategy], reducer)))
      reducer.shard = std::make_unique<GradientShard>(reducer.bucket, *parts);
  }
  order_.resize(size());
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  positions_ = order_;
}

BucketReducer BucketReducers::make(Bucket bucket, std::size_t strategy) {
  auto exchange = strategies_[strategy].exchange(bucket);
  auto residuals = residuals_of(*exchange, bucket);
  const bool has_residuals = have_residuals(residuals, bucket);
  // The group itself divides a single all_reduce between the hosts. The backends of devices divide
  // every operation themselves.
  const bool is_divided = !memory_ && !exchange->is_all_reduce() && group_.device().is_cpu();
  if (is_divided && !hosts_) hosts_ = HostGroups::of(group_);
  int counted_stage = 0;
  if (is_divided && hosts_) {
    exchange.reset();
    exchange = between_hosts(strategies_[strategy], bucket, *hosts_);
    residuals = residuals_of(*exchange, bucket);
    counted_stage = 1;  // stage 0 is a reduce-scatter inside the host
  }
  if (!has_residuals) residuals.clear();
  return {.bucket = std::move(bucket),
          .exchange = std::move(exchange),
          .residuals = std::move(residuals),
          .strategy = strategy,
          .index_in_strategy = buckets_of_strategy_[strategy]++,
          .counted_stage = counted_stage};
}

void BucketReducers::begin_use(std::size_t index) {
  if (!memory_) return;
  const auto position = positions_[index];
  if (position >= exchanges_at_once) end_use(order_[position - exchanges_at_once]);
  memory_->begin_use(reducers_[index].bucket, position);
}

void BucketReducers::set_optimized(const IsOptimized& is_optimized) {
  for (auto& reducer : reducers_) {
    reducer.is_optimized = std::ranges::all_of(
        reducer.bucket.slices(), [&](const auto& slice) { return is_optimized(slice.parameter); });
  }
}

void BucketReducers::discard_parts() {
  if (memory_) return;
  for (auto& reducer : reducers_) {
    if (reducer.shard != nullptr) reducer.shard->discard();
  }
}

void BucketReducers::keep_parts() {
  for (auto& reducer : reducers_) {
    if (reducer.shard != nullptr) reducer.shard->keep();
  }
}

void BucketReducers::set_order_once(std::span<const std::size_t> ready) {
  if (order_is_set_) return;
  order_is_set_ = true;
  if (size() < 2) return;
  // Buckets that never became ready follow in their old order.
  std::vector<std::int64_t> observed(ready.begin(), ready.end());
  for (const auto index : order_) {
    if (std::ranges::find(ready, index) == ready.end()) {
      observed.push_back(static_cast<std::int64_t>(index));
    }
  }
  group_.host().communicator().broadcast(observed.data(), observed.size(), DType::i64, 0).wait();
  for (std::size_t i = 0; i < size(); ++i) {
    order_[i] = static_cast<std::size_t>(observed[i]);
    positions_[order_[i]] = i;
  }
}

bool BucketReducers::exchanges(SyncTarget wanted, std::int64_t step) const {
  for (std::size_t i = 0; i < size(); ++i) {
    if (target(i, step) == wanted) return true;
  }
  return false;
}

Source BucketReducers::source(std::size_t index, SyncTarget target) const {
  auto source = owner_;
  source.content =
      target == SyncTarget::gradients ? Source::Content::gradients : Source::Content::parameters;
  source.bucket = static_cast<std::int32_t>(index);
  return source;
}

/// Runs a bucket's exchange to its next collective. Counts its bytes and its computing time.
Work BucketReducers::advance(std::size_t index, SyncTarget target, ExchangeTask& task, int stage) {
  auto& reducer = reducers_[index];
  // Dense bytes include those of the steps that skipped this bucket, so that the compression ratio
  // covers them.
  const bool counts = stage == reducer.counted_stage;
  const auto dense_bytes = counts ? reducer.bucket.values().nbytes() + reducer.skipped_bytes : 0;
  if (counts) reducer.skipped_bytes = 0;
  auto& statistics = GroupStatistics::of(group_.communicator());
  const SourceScope of_bucket(group_.communicator(), source(index, target));
  const DenseBytesScope dense_bytes_scope(statistics, dense_bytes);
  // Collectives, and exchanges that compute in shared memory, count their own computing time.
  const auto counted = work_done();
  const auto begin = std::chrono::steady_clock::now();
  Work work = task.advance();
  const auto time = std::chrono::steady_clock::now() - begin - (work_done() - counted);
  statistics.count_work(static_cast<int>(index), time);
  return work;
}

void BucketReducers::pack_parameters(BucketReducer& reducer) {
  if (reducer.parameters == nullptr) {
    const auto& gradients = reducer.bucket;
    const auto slices = gradients.slices();
    reducer.parameters = std::make_unique<Bucket>(
        gradients.index(), static_cast<std::size_t>(gradients.values().numel()),
        gradients.values().scalar_type(), std::vector<Bucket::Slice>(slices.begin(), slices.end()),
        group_);
  }
  for (const auto& slice : reducer.parameters->slices()) slice.values.copy_(slice.parameter);
}

void BucketReducers::before_update(std::int64_t step) {
  for (std::size_t i = 0; i < size(); ++i) {
    if (target(i, step) != SyncTarget::parameters) continue;
    reducers_[i].exchange->before_update(step, reducers_[i].bucket);
  }
}

void BucketReducers::count_skipped(std::int64_t step) {
  for (std::size_t i = 0; i < size(); ++i) {
    if (target(i, step) == SyncTarget::none) {
      reducers_[i].skipped_bytes += reducers_[i].bucket.values().nbytes();
    }
  }
}

void BucketReducers::exchange_parameters(std::int64_t step) {
  const at::NoGradGuard no_grad;
  const CommStreamScope on_comm_stream(comm_stream_, {});
  for (std::size_t i = 0; i < size(); ++i) {
    if (target(i, step) == SyncTarget::parameters) pack_parameters(reducers_[i]);
  }
  ExchangeRound round(*this, SyncTarget::parameters, step);
  if (const auto error = round.complete()) std::rethrow_exception(error);
  for (std::size_t i = 0; i < size(); ++i) {
    if (target(i, step) == SyncTarget::parameters) unpack_parameters(*reducers_[i].parameters);
  }
  on_comm_stream.block_caller();
}

void BucketReducers::average_parameters() {
  const at::NoGradGuard no_grad;
  const CommStreamScope on_comm_stream(comm_stream_, {});
  std::vector<Work> works;
  std::vector<const Bucket*> averaged;
  for (auto& reducer : reducers_) {
    // These parameters are equal, and the mean of equal values may be rounded.
    if (strategies_[reducer.strategy].exchanges_every_gradient()) continue;
    pack_parameters(reducer);
    averaged.push_back(reducer.parameters.get());
    const SourceScope of_bucket(group_.communicator(),
                                source(reducer.bucket.index(), SyncTarget::parameters));
    works.push_back(group_.all_reduce(reducer.parameters->values(), ReduceOp::avg));
  }
  for (auto& work : works) work.wait();
  for (const auto* bucket : averaged) unpack_parameters(*bucket);
  on_comm_stream.block_caller();
}

State BucketReducers::state() const {
  State all;
  for (const auto& reducer : reducers_) all.merge(reducer.exchange->state());
  return all;
}

void BucketReducers::load(const State& state) {
  // An exchange may refuse its state after others have loaded theirs.
  State before;
  for (const auto& [name, tensor] : this->state()) before.emplace(name, tensor.clone());
  const auto load_all = [&](const State& all) {
    for (auto& reducer : reducers_) reducer.exchange->load(all);
  };
  try {
    load_all(state);
  } catch (...) {
    load_all(before);
    throw;
  }
}

}  // namespace lockstep::detail
