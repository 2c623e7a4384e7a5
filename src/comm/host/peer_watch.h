#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/host/host.h"
#include "comm/host/world.h"
#include "comm/host/world_layout.h"

namespace lockstep::inline v0_2::host {

/// Another rank's process, held so that its end shows and its number cannot mislead.
class ProcessWatch {
 public:
  /// Watches a process of this process's pid namespace. One that is no longer there has ended.
  explicit ProcessWatch(pid_t pid);
  ProcessWatch(ProcessWatch&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), ended_(other.ended_) {}
  ProcessWatch& operator=(ProcessWatch&&) = delete;
  ~ProcessWatch();

  bool ended() const;
  /// Readable once the process has ended; -1 where it cannot be watched.
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
  bool ended_ = false;  ///< before it was watched
};

/// The process that started the ranks, whose end ends their world.
class LauncherWatch {
 public:
  LauncherWatch() = default;
  /// pid 0 watches nothing.
  LauncherWatch(pid_t pid, std::string name);

  /// The sentence about a launcher that has ended.
  std::optional<std::string> ended() const;

 private:
  std::optional<ProcessWatch> process_;
  std::string name_;
};

/// Identifies this process's pid namespace: in another, the same numbers are other processes. 0
/// where it cannot be known.
std::uint64_t pid_space();

/// Tells the world which process the rank is, as this process knows it.
void tell_pid(RankState& state, pid_t pid);

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
