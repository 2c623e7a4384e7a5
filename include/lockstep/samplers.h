#pragma once

#include <ATen/core/Tensor.h>
#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/group.h"

namespace lockstep::inline v0_2 {

/// Which of how many ranks a sampler draws for.
struct ShardSpec {
  int rank = 0;
  int ranks = 1;
};

/// How a pass treats the remaining samples when they are fewer than one per rank.
enum class Tail : std::uint8_t {
  pad,  ///< filled up from the beginning of the order: every sample is drawn, some twice
  drop  ///< they are left out of this pass
};

struct SamplerOptions {
  std::uint64_t seed = 0;  ///< with the epoch, decides the order
  bool shuffle = true;     ///< a new order every epoch; otherwise 0, 1, 2, …
  Tail tail = Tail::pad;
};

/// Deals a dataset's samples to the ranks, equally many to each. Rank r of N draws positions r,
/// r+N, r+2N, … of an order that all ranks share. Each pass is a new epoch, counted from 0.
///
/// Copies share their state, since LibTorch's data loader works on a copy: set_epoch() reaches the
/// loader's. Two loaders need two samplers.
/// Ranks: all construct it with the same size and options; no communication.
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  /// Throws: InvalidArgument for a rank outside the group.
  DistributedSampler(std::size_t size, ShardSpec shard, SamplerOptions options = {});
  DistributedSampler(std::size_t size, const Group& group, SamplerOptions options = {});

  /// Makes this the epoch of the next pass; the passes after it count on from there. Another epoch
  /// than load_state() found begins at its beginning.
  void set_epoch(std::uint64_t epoch);
  /// The epoch of the pass that began last; before the first, the one that it will have.
  std::uint64_t epoch() const;

  /// Samples that each rank draws in one pass.
  std::size_t samples_per_rank() const;

  /// Begins a new pass, over new_size samples if given. A data loader's begin() calls it.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  /// Up to batch_size more indices of this rank, or nothing at the end of the pass.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  /// Counts samples of the running pass that this rank's program is done with. torch::data's loader
  /// with workers and join_uneven() draw ahead of the program, so they need this call. Without them
  /// drawn samples count as used. PrefetchLoader calls it.
  void used(std::size_t samples);

  /// How far all ranks have come, for a checkpoint: epoch, and positions of its order that are
  /// done. The same on every rank that has used as many samples.
  std::map<std::string, at::Tensor> state() const;
  /// The next pass is the remainder of the stopped pass, on as many ranks as there are now.
  /// Throws: InvalidArgument for what state() did not return.
  void load_state(const std::map<std::string, at::Tensor>& state);

  /// Keeps the epoch that the next pass will have.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// The order of size samples in one epoch, by Fisher-Yates from the last place down. Each place is
/// swapped with one drawn without bias from those up to it. The generator is a std::mt19937_64,
/// seeded through std::seed_seq with the two halves, low first, of seed and of epoch. The same on
/// every platform.
std::vector<std::size_t> epoch_order(std::size_t size, std::uint64_t seed, std::uint64_t epoch);

/// Deals a dataset to the ranks so that each sample is drawn exactly once over all of them. Rank r
/// of N draws the indices from floor(r·size/N) up to floor((r+1)·size/N), in order. Ranks may
/// differ by one sample, so reduce results as sums and counts, as Tally does.
/// Ranks: all construct it with the same size; no communication.
class EvaluationSampler : public torch::data::samplers::Sampler<> {
 public:
  /// Throws: InvalidArgument for a rank outside the group.
  EvaluationSampler(std::size_t size, ShardSpec shard);
  EvaluationSampler(std::size_t size, const Group& group);

  /// Begins a new pass, over new_size samples if given.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  /// There is nothing to keep: every pass is the same.
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}

 private:
  ShardSpec shard_;
  std::size_t next_ = 0;
  std::size_t end_ = 0;
  std::size_t size_;
};

}  // namespace lockstep
