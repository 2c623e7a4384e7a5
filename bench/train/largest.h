#pragma once

#include <ATen/ops/scalar_tensor.h>

#include <chrono>

#include "lockstep/group.h"

namespace lockstep::bench {

/// The largest of all ranks' values. Ranks: all.
inline double largest(double value, const Group& world) {
  const at::Tensor tensor = at::scalar_tensor(value, at::kDouble);
  world.host().all_reduce(tensor, ReduceOp::max).wait();
  return tensor.item<double>();
}

/// The slowest rank's seconds for fn, which all begin at once. Ranks: all.
template <class Fn>
double slowest_seconds(const Group& world, const Fn& fn) {
  world.barrier().wait();
  const auto begin = std::chrono::steady_clock::now();
  fn();
  return largest(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
                 world);
}

}  // namespace lockstep::bench
