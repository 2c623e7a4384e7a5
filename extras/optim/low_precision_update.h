#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <vector>

#include "kernels/low_precision.h"
#include "lockstep/fused_optimizers.h"
#include "parallel/update/optimizer_fields.h"

namespace lockstep::inline v0_2::detail {

/// One update of a parameter of bfloat16 or float16 that is computed in float32.
struct LowPrecisionUpdate {
  LowPrecision mode;
  at::Tensor parameter;  ///< dense in memory
  at::Tensor gradient;
  /// The tensors of the parameter's state, which are allocated where they are undefined, and get
  /// the strides of the parameter where they have others.
  std::vector<at::Tensor*> state;
  at::ScalarType state_dtype;
  LowPrecisionFields* fields;
  kernels::RandomStream stream;  ///< of the parameter
  std::size_t first;             ///< index of the first element

  /// Calls the kernel for consecutive elements in float32, and stores what it computes.
  void run(const std::function<void(const ElementwiseOptimizer::Elements&)>& kernel) const;
};

}  // namespace lockstep::detail
