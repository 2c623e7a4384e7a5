#include "lockstep/parallel/lanes.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/sync/between_hosts.h"

namespace lockstep::detail {
namespace {

/// What the exchange has not sent of each slice; undefined where it keeps nothing of one.
std::vector<at::Tensor> residuals_of(const Exchange& exchange, const Bucket& bucket) {
  const auto state = exchange.state();
  std::vector<at::Tensor> residuals;
  for (const auto& slice : bucket.slices()) {
    const auto found = state.find(slice.name + ".residual");
    const bool kept = found != state.end() && found->second.sizes() == slice.values.sizes();
    residuals.push_back(kept ? found->second : at::Tensor());
  }
  return residuals;
}

/// Whether the exchange keeps what it has not sent, of every slice.
bool keeps_residuals(const std::vector<at::Tensor>& residuals, const Bucket& bucket) {
  const auto dtype = bucket.values().scalar_type();
  return (dtype == at::kFloat || dtype == at::kDouble) &&
         std::ranges::all_of(residuals, [](const auto& residual) { return residual.defined(); });
}

/// Copies a bucket's values back into the parameters they were taken from.
void unpack_parameters(const Bucket& bucket) {
  for (const auto& slice : bucket.slices()) slice.parameter.copy_(slice.values);
}

}  // namespace

Lanes::Lanes(std::span<const NamedTensor> parameters, const Group& group, BucketCaps caps,
             const Strategy& strategy, const Source& owner)
    : group_(group), owner_(owner), strategy_(strategy) {
  std::vector<ParameterSpec> specs;
  for (const auto& [name, tensor] : parameters) {
    specs.push_back({.numel = static_cast<std::size_t>(tensor.numel()),
                     .dtype = tensor.scalar_type(),
                     .device = tensor.device()});
  }
  const auto plan = bucket_plan(specs, caps);
  lanes_.reserve(plan.size());
  for (const auto& planned : plan) {
    std::vector<Bucket::Slice> slices;
    for (const auto& [parameter, offset] : planned.places) {
      slices.push_back({.name = parameters[parameter].name,
                        .parameter = parameters[parameter].tensor,
                        .offset = offset});
    }
    lanes_.push_back(
        lane_of({lanes_.size(), planned.numel, planned.dtype, std::move(slices), group_}));
  }
  order_.resize(size());
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  positions_ = order_;
}

Lane Lanes::lane_of(Bucket bucket) {
  auto exchange = strategy_.exchange(bucket);
  auto residuals = residuals_of(*exchange, bucket);
  const bool kept = keeps_residuals(residuals, bucket);
  const bool by_parts = !exchange->is_all_reduce();
  if (by_parts && !hosts_) hosts_ = HostGroups::of(group_);
  int sends_from = 0;
  if (by_parts && hosts_) {
    exchange.reset();
    exchange = between_hosts(strategy_, bucket, *hosts_);
    residuals = residuals_of(*exchange, bucket);
    sends_from = 1;
  }
  if (!kept) residuals.clear();
  return {.bucket = std::move(bucket),
          .exchange = std::move(exchange),
          .residuals = std::move(residuals),
          .sends_from = sends_from};
}

void Lanes::learn_order(std::span<const std::size_t> ready) {
  if (order_known_) return;
  order_known_ = true;
  if (size() < 2) return;
  // What was ready first leaves first; what never was keeps its order, behind.
  std::vector<std::int64_t> observed(ready.begin(), ready.end());
  for (const auto lane : order_) {
    if (std::ranges::find(ready, lane) == ready.end()) {
      observed.push_back(static_cast<std::int64_t>(lane));
    }
  }
  group_.communicator().broadcast(observed.data(), observed.size(), DType::i64, 0).wait();
  for (std::size_t i = 0; i < size(); ++i) {
    order_[i] = static_cast<std::size_t>(observed[i]);
    positions_[order_[i]] = i;
  }
}

bool Lanes::exchanges(Content what, std::int64_t step) const {
  for (std::size_t lane = 0; lane < size(); ++lane) {
    if (content(lane, step) == what) return true;
  }
  return false;
}

/// The source of a bucket's collectives: of its gradients or of its parameters.
Source Lanes::source(std::size_t lane, const Bucket& bucket) const {
  auto source = owner_;
  source.content =
      &bucket == &lanes_[lane].bucket ? Source::Content::gradients : Source::Content::parameters;
  source.bucket = static_cast<std::int32_t>(lane);
  return source;
}

Work Lanes::advance(std::size_t lane, Turn turn, Bucket& bucket) {
  // What is sent now stands for the turns that were left out, too.
  const bool sends = turn.stage == lanes_[lane].sends_from;
  const auto dense_bytes = sends ? bucket.values().nbytes() + lanes_[lane].not_sent : 0;
  if (sends) lanes_[lane].not_sent = 0;
  const SourceScope of_bucket(group_.communicator(), source(lane, bucket), dense_bytes);
  // Collectives, and exchanges that work where the buckets lie, count their own work.
  const auto counted = work_done();
  const auto begin = std::chrono::steady_clock::now();
  Work work = lanes_[lane].exchange->advance(turn, bucket, group_);
  const auto time = std::chrono::steady_clock::now() - begin - (work_done() - counted);
  group_.communicator().count_work(static_cast<int>(lane), time);
  return work;
}

Work Lanes::begin(std::size_t lane, std::int64_t step) {
  return advance(lane, {.step = step}, lanes_[lane].bucket);
}

std::exception_ptr Lanes::complete(std::span<Work> works, std::int64_t step,
                                   Bucket& (*bucket_of)(Lane&)) {
  std::exception_ptr refused;
  bool going = true;
  for (int stage = 1; going; ++stage) {
    going = false;
    for (std::size_t i = 0; i < works.size(); ++i) {
      if (!works[i].pending()) continue;
      works[i].wait();
      const auto lane = order_[i];
      try {
        works[i] = advance(lane, {.step = step, .stage = stage}, bucket_of(lanes_[lane]));
      } catch (const InvalidArgument&) {
        // Every rank refuses it here, so the others can be completed, and the group stays usable.
        if (refused == nullptr) refused = std::current_exception();
      }
      going = going || works[i].pending();
    }
  }
  return refused;
}

void Lanes::pack_parameters(Lane& lane) {
  if (lane.parameters == nullptr) {
    const auto& gradients = lane.bucket;
    const auto slices = gradients.slices();
    lane.parameters = std::make_unique<Bucket>(
        gradients.index(), static_cast<std::size_t>(gradients.values().numel()),
        gradients.values().scalar_type(), std::vector<Bucket::Slice>(slices.begin(), slices.end()),
        group_);
  }
  for (const auto& slice : lane.parameters->slices()) slice.values.copy_(slice.parameter);
}

void Lanes::before_update(std::int64_t step) {
  for (std::size_t lane = 0; lane < size(); ++lane) {
    if (content(lane, step) != Content::parameters) continue;
    lanes_[lane].exchange->before_update(step, lanes_[lane].bucket);
  }
}

void Lanes::count_left_out(std::int64_t step) {
  for (std::size_t lane = 0; lane < size(); ++lane) {
    if (content(lane, step) == Content::nothing) {
      lanes_[lane].not_sent += lanes_[lane].bucket.values().nbytes();
    }
  }
}

void Lanes::exchange_parameters(std::int64_t step) {
  const at::NoGradGuard no_grad;
  std::vector<Work> works;
  works.reserve(size());
  for (const auto lane : order_) {
    works.emplace_back();
    if (content(lane, step) != Content::parameters) continue;
    pack_parameters(lanes_[lane]);
    works.back() = advance(lane, {.step = step}, *lanes_[lane].parameters);
  }
  if (const auto refused = complete(works, step, &of_parameters)) std::rethrow_exception(refused);
  for (std::size_t lane = 0; lane < size(); ++lane) {
    if (content(lane, step) == Content::parameters) unpack_parameters(*lanes_[lane].parameters);
  }
}

void Lanes::average_parameters() {
  const at::NoGradGuard no_grad;
  std::vector<Work> works;
  for (auto& lane : lanes_) {
    pack_parameters(lane);
    const SourceScope of_bucket(group_.communicator(),
                                source(lane.bucket.index(), *lane.parameters));
    works.push_back(group_.all_reduce(lane.parameters->values(), ReduceOp::avg));
  }
  for (auto& work : works) work.wait();
  for (auto& lane : lanes_) unpack_parameters(*lane.parameters);
}

State Lanes::state() const {
  State all;
  for (const auto& lane : lanes_) all.merge(lane.exchange->state());
  return all;
}

void Lanes::load(const State& state) {
  for (auto& lane : lanes_) lane.exchange->load(state);
}

}  // namespace lockstep::detail
