#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/work.h"
#include "lockstep/group.h"

namespace lockstep::detail {

/// How much each rank's gradients count at the next exchange.
class Weights {
 public:
  explicit Weights(const Group& group);

  /// Tells the others this rank's weight; does not block.
  /// Ranks: all of the group.
  void set(double weight);

  /// What this rank multiplies its gradients by, so that their mean over ranks is weighted:
  /// w_r · N ÷ Σ w, and 1 exactly when all weights are equal or none were set. Forgets them.
  /// Throws: InvalidArgument, on every rank, when one is negative or not finite, or all are zero.
  double take_factor();

 private:
  Group group_;
  at::Tensor mine_;
  at::Tensor all_;
  Work work_;
};

}  // namespace lockstep::detail
