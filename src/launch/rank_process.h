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

/// The resources of the launcher that every rank inherits.
struct Inheritance {
  int arena;     ///< descriptor of the world's memory
  int errors;    ///< descriptor of the ErrorRecords
  int registry;  ///< descriptor of the guardian's registry, or -1
  const SignalWatch& signals;
  const FileLimit& files;
};

/// The descriptors of a rank's standard streams.
struct StandardStreams {
  int in;
  int out;
  int err;
};

/// One rank's process, the leader of its own process group. Its pid cannot be reused before it is
/// reaped.
class RankProcess {
 public:
  /// Starts the process, which executes the program asynchronously.
  /// Throws: CommError if the process cannot be started.
  RankProcess(const Plan& plan, int rank, const StandardStreams& streams,
              const Inheritance& inheritance);

  /// Whether execve() has returned: the program runs, or its process has ended. On a hanging file
  /// system, execve() may take long.
  /// Throws: InvalidArgument if the program cannot be executed.
  bool started();
  /// Readable when started() changes; -1 from then on.
  int start_fd() const { return exec_error_.get(); }

  pid_t pid() const { return pid_; }

  /// How the process has ended; nullopt if it runs. Does not reap it.
  std::optional<Ending> ending() const;
  /// Whether a signal such as SIGSTOP has stopped the process.
  bool stopped() const;
  /// Whether the process has a handler for the signal, ignores it, or blocks it as for sigwait(),
  /// but not all signals.
  bool handles(int signal) const;
  /// Sends a signal to the rank's process group. False if the group has no process.
  bool signal_group(int signal) const noexcept;
  /// Waits until the process has ended or the time has come. False if it still runs.
  bool await_end(std::chrono::steady_clock::time_point until) const noexcept;
  /// Reaps the ended process, and ended orphans of its process group.
  void reap() noexcept;

 private:
  pid_t pid_ = -1;
  std::string program_;
  Descriptor exec_error_;  ///< pipe: receives errno if execve() fails, is closed if it succeeds
};

}  // namespace lockstep::launch
