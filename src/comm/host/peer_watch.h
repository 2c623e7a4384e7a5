#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/host/host.h"
#include "comm/host/world/world.h"
#include "comm/host/world/world_layout.h"
#include "core/system/process.h"

namespace lockstep::inline v0_2::host {

/// Watches the end of a process by a pidfd, which a reused pid does not affect.
class ProcessWatch {
 public:
  /// The process must be in this process's pid namespace. If it does not exist, it has ended.
  explicit ProcessWatch(pid_t pid);

  /// Whether the process has ended, or ends within this time.
  bool ended(std::chrono::milliseconds within = {}) const;
  /// Readable when the process has ended; -1 if it cannot be watched.
  int fd() const { return fd_.get(); }

 private:
  detail::Descriptor fd_;
  bool ended_;  ///< it had ended before construction
};

/// Watches the launcher, the process that started the ranks. Its end ends their world.
class LauncherWatch {
 public:
  /// A pid of 0 or 1 watches nothing.
  LauncherWatch(pid_t pid, std::string name);

  /// The error text if the launcher has ended.
  std::optional<std::string> ended() const;

 private:
  std::optional<ProcessWatch> process_;
  std::string name_;
};

/// Publishes the pid of a rank's process, with the pid namespace of this process.
void publish_pid(RankState& state, pid_t pid);

/// Watches the processes of the other ranks, for one rank. Note [How ranks watch processes] is in
/// peer_watch.cpp.
class PeerWatch {
 public:
  PeerWatch(World& world, const Options& options);

  /// The rank's status. Sets it to ended if the rank's process has ended.
  RankStatus status_of(int rank);
  /// Whether a signal has stopped the rank's process.
  bool is_stopped(int rank) const;
  /// Waits for the end of the rank's process, at most 1 s. Does nothing for a rank of this process.
  void await_end(int rank) const;

 private:
  struct Peer {
    std::optional<ProcessWatch> process = {};
    std::optional<std::chrono::steady_clock::time_point> ended = {};  ///< when its end was detected
  };

  /// The rank's pid; 0 if it is unknown or in another pid namespace.
  pid_t pid_of(int rank) const;
  bool has_ended(int rank);

  World& world_;
  bool watches_;
  bool supervised_;
  std::uint64_t pid_namespace_;
  std::vector<Peer> peers_;
};

}  // namespace lockstep::host
