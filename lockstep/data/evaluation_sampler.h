#pragma once

#include <torch/data/samplers/base.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "lockstep/data/distributed_sampler.h"
#include "lockstep/group.h"

namespace lockstep {

/// Deals a dataset to the ranks so that each sample is drawn exactly once over all of them: rank r
/// of N draws the indices from floor(r·size/N) up to floor((r+1)·size/N), in order. Ranks may
/// differ by one sample, so results are to be reduced as sums and counts, as Tally does.
/// Ranks: all construct it with the same size; no communication.
class EvaluationSampler : public torch::data::samplers::Sampler<> {
 public:
  /// Throws: InvalidArgument for a rank outside the group.
  EvaluationSampler(std::size_t size, Replica replica);
  EvaluationSampler(std::size_t size, const Group& group);

  /// Begins a new pass, over new_size samples if given.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  /// There is nothing to keep: every pass is the same.
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}

 private:
  Replica replica_;
  std::size_t next_ = 0;
  std::size_t end_ = 0;
  std::size_t size_;
};

}  // namespace lockstep
