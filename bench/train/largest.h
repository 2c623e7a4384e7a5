#pragma once

#include <ATen/ops/scalar_tensor.h>

#include "lockstep/group.h"

namespace lockstep::bench {

/// The largest of all ranks' values. Ranks: all.
inline double largest(double value, const Group& world) {
  const at::Tensor tensor = at::scalar_tensor(value, at::kDouble);
  world.host().all_reduce(tensor, ReduceOp::max).wait();
  return tensor.item<double>();
}

}  // namespace lockstep::bench
