#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>

#include "launch/ending.h"
#include "launch/plan.h"
#include "launch/signal_watch.h"
#include "launch/system.h"

namespace lockstep::inline v0_2::launch {

/// The resources that every rank gets from the launcher beside its plan.
struct Inheritance {
  int arena;     ///< the world's memory
  int errors;    ///< the file for the errors of ranks
  int registry;  ///< the guardian's, or -1
  const SignalWatch& signals;
  const FileLimit& files;
};

/// A rank's standard streams.
struct StandardStreams {
  int in;
  int out;
  int err;
};

/// One rank's process, leader of a process group of its own. Until reaped, its number cannot be
/// taken by another.
class RankProcess {
 public:
  /// Starts a process that is to execute the program.
  /// Throws: CommError when there can be no more processes.
  RankProcess(const Plan& plan, int rank, const StandardStreams& streams,
              const Inheritance& inheritance);

  /// Whether the program is executing, or its process has ended: execve() on a file system that
  /// hangs may take long.
  /// Throws: InvalidArgument when it cannot be executed.
  bool started();
  /// Readable when started() changes; -1 from then on.
  int start_fd() const { return obstacle_.get(); }

  pid_t pid() const { return pid_; }

  /// How it ended, or empty while it runs. Leaves it to be reaped.
  std::optional<Ending> ending() const;
  /// Whether it is stopped, as by SIGSTOP.
  bool stopped() const;
  /// Sends to the rank and all its descendants that kept to its process group. False when there is
  /// none.
  bool signal_group(int signal) const noexcept;
  /// Waits for its end until then. False when it still runs.
  bool await_end(std::chrono::steady_clock::time_point until) const noexcept;
  /// Takes the ended process, and ended orphans of its group, off the kernel's books.
  void reap() noexcept;

 private:
  pid_t pid_ = -1;
  std::string program_;
  Descriptor obstacle_;  ///< brings errno when execve fails, and ends when it succeeds
};

}  // namespace lockstep::launch
