#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/host/world/world.h"

namespace lockstep::inline v0_2::host {

/// Options of a host world.
struct Options {
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  ///< longest wait of one operation
  int threads_per_rank =
      1;          ///< compute threads of each rank; a waiting rank spins if all threads have a core
  int cores = 0;  ///< cores that the world's ranks share; 0 for all of the machine
  /// World ranks for error texts, if this world is the part of another world on one host; else
  /// empty.
  std::vector<int> world_ranks = {};
  /// Map the memory that ranks allocate when this rank joins. Else it is mapped when a rank first
  /// uses it, so that a program may have many worlds that allocate none.
  bool map_heaps = true;
  bool watch = false;       ///< check during waits whether other ranks' processes have ended
  bool supervised = false;  ///< a launcher records how ranks' processes end
  bool records = true;      ///< keep a flight record; false for the part of another world
  pid_t launcher = 0;  ///< process that started the ranks, whose end ends the world; 0 for none
  std::string launcher_name = {};  ///< name of the launcher in error texts
};

/// Empty if the backend works on this machine, else the reason why it does not.
std::string available();

/// Joins the world and returns this rank's communicator over all its ranks. Every rank calls it
/// once, from its own process or thread; returns when all have joined.
/// Throws: TimeoutError naming the ranks that did not join. CommError if a rank's process has
/// ended. InvalidArgument, on every rank, if the calling threads of some ranks flush denormals and
/// those of others keep them.
std::shared_ptr<Communicator> create(std::shared_ptr<World> world, int rank,
                                     const Options& options);

}  // namespace lockstep::host
