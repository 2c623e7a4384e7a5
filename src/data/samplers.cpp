#include "lockstep/samplers.h"

#include <ATen/ops/tensor.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <utility>

#include "core/operation_error.h"
#include "core/text.h"
#include "data/check_shard.h"
#include "data/data_position.h"
#include "group/instances.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {

namespace {

constexpr const char* position_name = "position";

// Not std::uniform_int_distribution, whose results differ between standard libraries.
std::uint64_t draw_below(std::uint64_t bound, std::mt19937_64& generator) {
  constexpr auto largest = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t unbiased = largest - largest % bound;
  std::uint64_t value;
  do {
    value = generator();
  } while (value >= unbiased);
  return value % bound;
}

std::uint32_t low(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
std::uint32_t high(std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); }

void shuffle(std::span<std::size_t> order, std::uint64_t seed, std::uint64_t epoch) {
  std::seed_seq seeds{low(seed), high(seed), low(epoch), high(epoch)};
  std::mt19937_64 generator(seeds);
  for (std::size_t place = order.size(); place > 1; --place)
    std::swap(order[place - 1], order[draw_below(place, generator)]);
}

}  // namespace

void detail::check_shard(const char* operation, ShardSpec shard) {
  if (shard.ranks < 1 || shard.rank < 0 || shard.rank >= shard.ranks)
    throw_invalid(operation, "got rank ", shard.rank, " of ", shard.ranks,
                  ", expected 0 <= rank < ranks");
}

std::vector<std::size_t> epoch_order(std::size_t size, std::uint64_t seed, std::uint64_t epoch) {
  std::vector<std::size_t> order(size);
  std::iota(order.begin(), order.end(), std::size_t{0});
  shuffle(order, seed, epoch);
  return order;
}

struct DistributedSampler::State {
  std::size_t size;
  ShardSpec shard;
  SamplerOptions options;

  std::uint64_t next_epoch = 0;
  std::uint64_t epoch = 0;
  bool begun = false;
  std::vector<std::size_t> order{};  ///< reused, so that a new pass allocates no memory
  std::vector<std::size_t> own{};    ///< this rank's indices of the current pass, in order
  std::size_t drawn = 0;
  std::optional<std::size_t> used{};  ///< samples that the program has reported by used()
  std::uint64_t batches = 0;          ///< drawn in the current pass, or reported by used()
  std::shared_ptr<detail::DataPosition> position{};  ///< of the group; null without one

  std::size_t next_done = 0;  ///< positions of the order that the next pass skips
  std::size_t done = 0;       ///< positions of the order that the current pass skips

  void count_batch() {
    ++batches;
    if (position) position->set(epoch, batches);
  }

  std::size_t ranks() const { return static_cast<std::size_t>(shard.ranks); }
  /// Samples of each rank in a pass that skips the first positions of the order.
  std::size_t rows(std::size_t skipped) const {
    const std::size_t left = size - std::min(size, skipped);
    return options.tail == Tail::drop ? left / ranks() : (left + ranks() - 1) / ranks();
  }
};

DistributedSampler::DistributedSampler(std::size_t size, ShardSpec shard, SamplerOptions options) {
  detail::check_shard("DistributedSampler", shard);
  state_ = std::make_shared<State>(State{.size = size, .shard = shard, .options = options});
}

DistributedSampler::DistributedSampler(std::size_t size, const Group& group, SamplerOptions options)
    : DistributedSampler(size, ShardSpec{.rank = group.rank(), .ranks = group.size()}, options) {
  state_->position = detail::per_group<detail::DataPosition>(group.host());
}

void DistributedSampler::set_epoch(std::uint64_t epoch) {
  if (epoch != state_->next_epoch) state_->next_done = 0;
  state_->next_epoch = epoch;
}

std::uint64_t DistributedSampler::epoch() const {
  return state_->begun ? state_->epoch : state_->next_epoch;
}

std::size_t DistributedSampler::size() const { return state_->size; }

std::size_t DistributedSampler::samples_per_rank() const { return state_->rows(0); }

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  State& state = *state_;
  state.size = new_size.value_or(state.size);
  state.epoch = state.next_epoch++;
  state.begun = true;
  state.done = std::exchange(state.next_done, 0);
  state.drawn = 0;
  state.used.reset();
  state.batches = 0;

  state.order.resize(state.size);
  std::iota(state.order.begin(), state.order.end(), std::size_t{0});
  if (state.options.shuffle) shuffle(state.order, state.options.seed, state.epoch);
  const auto rank = static_cast<std::size_t>(state.shard.rank);
  state.own.resize(state.rows(state.done));
  for (std::size_t row = 0; row < state.own.size(); ++row)
    state.own[row] = state.order[(state.done + row * state.ranks() + rank) % state.size];
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  if (!state_->begun) reset();
  State& state = *state_;
  const std::size_t count = std::min(batch_size, state.own.size() - state.drawn);
  if (count == 0) return std::nullopt;
  const auto first = state.own.begin() + static_cast<std::ptrdiff_t>(state.drawn);
  state.drawn += count;
  if (!state.used) state.count_batch();
  return std::vector<std::size_t>(first, first + static_cast<std::ptrdiff_t>(count));
}

void DistributedSampler::used(std::size_t samples) {
  if (!state_->used) state_->batches = 0;
  state_->used = state_->used.value_or(0) + samples;
  if (samples > 0) state_->count_batch();
}

std::map<std::string, at::Tensor> DistributedSampler::state() const {
  const State& state = *state_;
  std::uint64_t epoch = state.next_epoch;
  std::size_t done = state.next_done;
  const std::size_t rows = std::min(state.used.value_or(state.drawn), state.own.size());
  if (state.begun && rows < state.own.size()) {
    epoch = state.epoch;
    done = state.done + rows * state.ranks();
  }
  return {
      {position_name,
       at::tensor({static_cast<std::int64_t>(epoch), static_cast<std::int64_t>(done)}, at::kLong)}};
}

void DistributedSampler::load_state(const std::map<std::string, at::Tensor>& state) {
  const auto found = state.find(position_name);
  if (state.size() != 1 || found == state.end() || found->second.scalar_type() != at::kLong ||
      found->second.sizes() != at::IntArrayRef{2} || found->second.lt(0).any().item<bool>())
    detail::throw_invalid("DistributedSampler", "got a state that state() did not return");
  state_->next_epoch = static_cast<std::uint64_t>(found->second[0].item<std::int64_t>());
  state_->next_done = static_cast<std::size_t>(found->second[1].item<std::int64_t>());
  state_->begun = false;
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("epoch", c10::IValue(static_cast<std::int64_t>(state_->next_epoch)));
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  c10::IValue epoch;
  archive.read("epoch", epoch);
  state_->next_epoch = static_cast<std::uint64_t>(epoch.toInt());
  state_->next_done = 0;
  state_->begun = false;
}

EvaluationSampler::EvaluationSampler(std::size_t size, ShardSpec shard)
    : shard_(shard), size_(size) {
  detail::check_shard("EvaluationSampler", shard);
  reset();
}

EvaluationSampler::EvaluationSampler(std::size_t size, const Group& group)
    : EvaluationSampler(size, ShardSpec{.rank = group.rank(), .ranks = group.size()}) {}

void EvaluationSampler::reset(std::optional<std::size_t> new_size) {
  size_ = new_size.value_or(size_);
  const auto rank = static_cast<std::size_t>(shard_.rank);
  const auto ranks = static_cast<std::size_t>(shard_.ranks);
  next_ = size_ * rank / ranks;
  end_ = size_ * (rank + 1) / ranks;
}

std::optional<std::vector<std::size_t>> EvaluationSampler::next(std::size_t batch_size) {
  const std::size_t count = std::min(batch_size, end_ - next_);
  if (count == 0) return std::nullopt;
  std::vector<std::size_t> indices(count);
  std::iota(indices.begin(), indices.end(), next_);
  next_ += count;
  return indices;
}

}  // namespace lockstep
