#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/host/world.h"

namespace lockstep::host {

/// How ranks wait for one another.
struct Options {
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  ///< longest wait of one operation
  int threads_per_rank =
      1;  ///< compute threads of each rank; while all fit the cores, a waiting rank spins long
  int cores = 0;  ///< cores that the world's ranks share; 0 takes the machine's
  /// What the ranks are called in messages, when their world is a part of another; else by number.
  std::vector<int> names = {};
  bool watch = false;  ///< nobody marks ranks whose process ends: look for it while waiting
};

/// Empty where the backend works, else why it does not.
std::string available();

/// This rank's communicator over all ranks of the world. Called once by every rank, each from its
/// own process or thread; returns when all have joined. Throws: TimeoutError naming the ranks that
/// did not come, CommError when one of them is gone.
std::shared_ptr<Communicator> create(std::shared_ptr<World> world, int rank,
                                     const Options& options);

}  // namespace lockstep::host
