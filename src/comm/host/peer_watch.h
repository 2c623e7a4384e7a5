#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/host/host.h"
#include "comm/host/process_watch.h"
#include "comm/host/world.h"

namespace lockstep::inline v0_2::host {

/// One rank's watch over the processes of the other ranks and of the launcher. Note [How ranks
/// watch processes] is in peer_watch.cpp.
class PeerWatch {
 public:
  PeerWatch(World& world, const Options& options);

  /// The rank's status. Marks a process that has ended as gone.
  RankStatus status_of(int rank);
  /// Whether a signal has stopped the rank's process.
  bool is_stopped(int rank) const;
  /// The sentence about a launcher that has ended.
  std::optional<std::string> launcher_ended() const { return launcher_.ended(); }
  /// Waits until the rank's process has ended, if that is soon and it is not this process.
  void await_end(int rank) const;

 private:
  struct Peer {
    std::optional<ProcessWatch> process = {};
    std::optional<std::chrono::steady_clock::time_point> ended = {};  ///< when that was seen
  };

  /// The rank's pid; 0 where it is unknown or of another pid namespace.
  pid_t pid_of(int rank) const;
  bool has_ended(int rank);

  World& world_;
  bool watches_;
  bool supervised_;
  std::uint64_t pid_space_;
  std::vector<Peer> peers_;
  LauncherWatch launcher_;
};

}  // namespace lockstep::host
