#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/host/world.h"

namespace lockstep::inline v0_2::host {

/// How ranks wait for one another.
struct Options {
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  ///< longest wait of one operation
  int threads_per_rank =
      1;  ///< compute threads of each rank; while all fit the cores, a waiting rank spins long
  int cores = 0;  ///< cores that the world's ranks share; 0 takes the machine's
  /// The ranks' numbers in messages, when their world is a part of another; empty for their own.
  std::vector<int> names = {};
  bool watch = false;       ///< look for ranks whose process ends while waiting, and mark them
  bool supervised = false;  ///< a launcher marks them, too, and says how they ended
  /// Keep the world of a rank that leaves by an exception, so that World::record_error() can
  /// follow.
  bool keep_world = false;
  pid_t launcher = 0;  ///< the process that started the ranks: the world ends with it; or 0
  std::string launcher_name = {};  ///< what it is called in messages
};

/// Empty where the backend works, else why it does not.
std::string available();

/// This rank's communicator over all ranks of the world. Called once by every rank, each from its
/// own process or thread; returns when all have joined. Throws: TimeoutError naming the ranks that
/// did not come, CommError when one of them is gone; InvalidArgument on every rank when the calling
/// threads of some flush denormals and those of others keep them.
std::shared_ptr<Communicator> create(std::shared_ptr<World> world, int rank,
                                     const Options& options);

}  // namespace lockstep::host
