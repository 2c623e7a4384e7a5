#pragma once

#include <ATen/core/Tensor.h>
#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/group.h"

namespace lockstep::inline v0_2 {

/// The rank for which a sampler draws, and the number of ranks.
struct ShardSpec {
  int rank = 0;
  int ranks = 1;
};

/// How a pass treats the last samples if there are fewer than one per rank.
enum class Tail : std::uint8_t {
  pad,  ///< the order is padded from its beginning: every sample is drawn, some twice
  drop  ///< the pass leaves them out
};

struct SamplerOptions {
  std::uint64_t seed = 0;  ///< seed and epoch determine the order
  bool shuffle = true;     ///< a new order every epoch; otherwise 0, 1, 2, …
  Tail tail = Tail::pad;
};

/// Distributes a dataset over the ranks, with the same number of samples for each. Rank r of N
/// draws positions r, r+N, r+2N, … of an order that is the same on all ranks. Each pass is a new
/// epoch, counted from 0.
///
/// Copies share their state, because LibTorch's data loader uses a copy: set_epoch() also affects
/// the loader's copy. Two loaders need two samplers.
///
/// Wrappers of the same group compare the ranks' epochs and batches at each exchange. If they
/// differ, as after a batch that one rank has skipped, rank 0 writes one warning to stderr.
/// Ranks: all construct it with the same size and options; no communication.
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  /// size: the dataset's, or less to use its first samples only.
  /// Throws: InvalidArgument for a rank outside the group.
  DistributedSampler(std::size_t size, ShardSpec shard, SamplerOptions options = {});
  /// Batches of this sampler are compared between the ranks of the group.
  DistributedSampler(std::size_t size, const Group& group, SamplerOptions options = {});

  /// Sets the epoch of the next pass; later passes count on from it. If it differs from the epoch
  /// that load_state() restored, the next pass is a whole one.
  void set_epoch(std::uint64_t epoch);
  /// The epoch of the current or last pass; before the first pass, the epoch of that one.
  std::uint64_t epoch() const;

  /// Samples that all ranks together draw from: indices are below it.
  std::size_t size() const;
  /// Samples that each rank draws in one pass.
  std::size_t samples_per_rank() const;

  /// Begins a new pass, over new_size samples if given. begin() of a data loader calls it.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  /// The next indices of this rank, at most batch_size; nullopt at the end of the pass.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  /// Counts samples of the current pass that this rank's program has used. Call it with
  /// torch::data's loader with workers or with join_uneven(), which draw samples ahead of the
  /// program. PrefetchLoader calls it itself. If it is never called, drawn samples count as used.
  void used(std::size_t samples);

  /// The progress of all ranks, for a checkpoint: the epoch, and the number of used positions in
  /// its order. Equal on all ranks that have used the same number of samples.
  std::map<std::string, at::Tensor> state() const;
  /// Restores the progress: the next pass is the remainder of the interrupted pass, distributed
  /// over the current ranks. Of a pass whose samples are all used nothing remains, and the next
  /// pass is that of the next epoch: a program that saves within the loop over batches resumes its
  /// own count of epochs at epoch().
  /// Throws: InvalidArgument for a state that state() did not return.
  void load_state(const std::map<std::string, at::Tensor>& state);

  /// Saves and loads the epoch of the next pass.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// The order of size samples in one epoch, the same on every platform. A Fisher-Yates shuffle from
/// the last position down: each position is swapped with an unbiased random one among those up to
/// it. The generator is a std::mt19937_64, seeded by a std::seed_seq of the low and high 32 bits of
/// seed, then those of epoch.
std::vector<std::size_t> epoch_order(std::size_t size, std::uint64_t seed, std::uint64_t epoch);

/// Distributes a dataset over the ranks such that each sample is drawn exactly once. Rank r of N
/// draws the indices floor(r·size/N) to floor((r+1)·size/N) − 1, in order. Ranks may differ by one
/// sample, so combine results as sums and counts, as Tally does.
/// Ranks: all construct it with the same size; no communication.
class EvaluationSampler : public torch::data::samplers::Sampler<> {
 public:
  /// Throws: InvalidArgument for a rank outside the group.
  EvaluationSampler(std::size_t size, ShardSpec shard);
  EvaluationSampler(std::size_t size, const Group& group);

  std::size_t size() const { return size_; }
  /// Begins a new pass, over new_size samples if given.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  /// Do nothing: the sampler has no state between passes.
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}

 private:
  ShardSpec shard_;
  std::size_t next_ = 0;
  std::size_t end_ = 0;
  std::size_t size_;
};

}  // namespace lockstep

namespace lockstep::inline v0_2::detail {

/// Iterates once over a range of batches. Range has peek(), the current value; count(), which
/// counts that as used; advance(); and ended().
template <class Range, class Value>
class RangeIterator {
 public:
  using difference_type = std::ptrdiff_t;
  using value_type = Value;
  using reference = Value&;
  using pointer = Value*;
  using iterator_category = std::input_iterator_tag;

  explicit RangeIterator(Range& range) : range_(&range) {}
  /// Returns the value and counts it as used.
  Value& operator*() const {
    range_->count();
    return peek();
  }
  Value* operator->() const { return &**this; }
  /// Returns the value without counting it as used.
  Value& peek() const { return range_->peek(); }
  RangeIterator& operator++() {
    range_->advance();
    return *this;
  }
  void operator++(int) { range_->advance(); }
  bool operator==(std::default_sentinel_t) const { return range_->ended(); }

 private:
  Range* range_;
};

}  // namespace lockstep::detail
