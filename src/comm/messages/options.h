#pragma once

#include <chrono>
#include <string>

#include "comm/control/offer.h"
#include "comm/messages/algorithm.h"
#include "core/environment.h"

namespace lockstep::inline v0_2::messages {

/// Options of a world whose ranks exchange messages.
struct Options {
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  ///< longest wait of one operation
  int threads_per_rank = 1;  ///< compute threads of each rank; a waiting rank spins if all threads
                             ///< of the host have a core
  int cores = 0;             ///< cores that a host's ranks share; 0 for all of the machine
  Algorithm algorithm = Algorithm::automatic;       ///< the same on all ranks
  ProgressMode progress = ProgressMode::automatic;  ///< how operations advance between calls
  std::string host = {};  ///< host id of this rank; empty: determined by this_host()
  /// The network interface of the connections between hosts; empty: the system's routes select it.
  std::string interface = {};
  std::chrono::milliseconds heartbeat =
      control::default_heartbeat;  ///< longest time without a heartbeat from a host
  bool records = true;             ///< keep a flight record; false for the part of another world
};

}  // namespace lockstep::messages
