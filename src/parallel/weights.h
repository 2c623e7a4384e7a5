#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/group.h"
#include "lockstep/work.h"

namespace lockstep::inline v0_2::detail {

/// How much each rank's gradients count at the next exchange.
class Weights {
 public:
  explicit Weights(const Group& group);

  /// Tells the others this rank's weight; does not block.
  /// Ranks: all of the group.
  void set(double weight);

  /// This rank's factor for its gradients, so that their mean over ranks is weighted: w_r · N ÷ Σ
  /// w. It is exactly 1 when all weights are equal or none were set. Forgets the weights.
  /// Throws: as check().
  double take_factor();

  /// Throws: InvalidArgument, on every rank, when a weight is negative or not finite, or all are
  /// zero. Forgets the weights then.
  void check();

 private:
  Group group_;
  at::Tensor mine_;
  at::Tensor all_;
  Work work_;
  bool are_set_ = false;
};

}  // namespace lockstep::detail
