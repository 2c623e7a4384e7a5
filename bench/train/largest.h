#pragma once

#include <ATen/ops/scalar_tensor.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

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

/// Work that all ranks repeat at the same time.
struct Timed {
  std::string name;
  std::function<void()> run;
  std::function<void()> prepare = [] {};
  double first = 0;                  ///< seconds of the first turn, which allocates memory
  std::vector<double> seconds = {};  ///< of the slowest rank in each of the other turns
};

/// Runs all of them in turns: once, and so many more times. Ranks: all.
inline void take_turns(std::vector<Timed>& all, int rounds, const Group& world) {
  for (int round = 0; round <= rounds; ++round) {
    for (auto& timed : all) {
      timed.prepare();
      const double seconds = slowest_seconds(world, timed.run);
      if (round == 0) {
        timed.first = seconds;
      } else {
        timed.seconds.push_back(seconds);
      }
    }
  }
}

}  // namespace lockstep::bench
