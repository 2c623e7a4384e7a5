#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lockstep/group.h"

namespace lockstep::inline v0_2 {

/// How well a model did on a number of samples.
struct Score {
  double loss = 0;      ///< mean over the samples
  double accuracy = 0;  ///< right answers per sample
  double top = 0;       ///< the same, where one of the tally's k best answers has to be right
  std::int64_t samples = 0;
};

/// Sums of losses and of right answers, so that means over batches and ranks of any sizes are
/// exact.
class Tally {
 public:
  Tally() = default;
  /// k: how many answers a sample has for Score::top, else 1.
  /// Throws: InvalidArgument if k is not positive.
  explicit Tally(std::int64_t k);

  /// Counts one batch.
  /// Shapes: mean_loss [], outputs [B, classes], targets [B] of int64.
  void add(const at::Tensor& mean_loss, const at::Tensor& outputs, const at::Tensor& targets);
  /// The same from numbers, for k = 1.
  void add(double mean_loss, std::int64_t right, std::int64_t samples);

  /// Over this rank's samples; all zero if there were none.
  Score score() const;
  /// Over all ranks' samples, the same on every rank.
  /// Ranks: all.
  Score score(const Group& group) const;

 private:
  std::int64_t k_ = 1;
  double loss_ = 0;
  std::int64_t right_ = 0;
  std::int64_t among_top_ = 0;
  std::int64_t samples_ = 0;
};

/// Samples a second of all ranks: theirs together, each rank passing its own, over the seconds of
/// the slowest; the same on every rank.
/// Ranks: all.
double throughput(std::int64_t samples, double seconds, const Group& group);

}  // namespace lockstep
