#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

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

}  // namespace lockstep::host
