#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "lockstep/group.h"
#include "lockstep/work.h"

namespace lockstep::inline v0_2::detail {

/// The weights of all ranks' gradients at the next exchange.
class Weights {
 public:
  explicit Weights(const Group& group);

  /// Begins the all_gather of the weights. Blocks only if weights were set since the last exchange.
  /// Ranks: all of the group.
  void set(double weight);

  /// The factor w_r · N ÷ Σ w of this rank's gradients, which makes their mean over ranks a
  /// weighted mean. Exactly 1 when all weights are equal or none were set. Clears the weights.
  /// Throws: as check().
  double take_factor();

  /// Throws: InvalidArgument, on every rank, when a weight is negative or not finite, when a rank
  /// has set two different ones, or all are zero. Clears the weights then.
  void check();

 private:
  /// The weights that a rank has set since the last exchange.
  struct OfRank {
    double first;
    double other;  ///< the latest that differs from the first; else the first
  };

  std::span<const OfRank> all() const;

  Group group_;
  at::Tensor mine_;
  at::Tensor all_;
  Work work_;
  bool are_set_ = false;
};

}  // namespace lockstep::detail
