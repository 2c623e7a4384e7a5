#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "lockstep/launch/plan.h"
#include "lockstep/launch/signal_watch.h"
#include "lockstep/launch/system.h"

namespace lockstep::launch {

/// How a process ended.
struct Ending {
  bool by_signal = false;
  int code = 0;  ///< exit code, or signal

  bool failed() const { return by_signal || code != 0; }
  /// As a shell counts: 128 + signal.
  int exit_code() const { return by_signal ? 128 + code : code; }
  /// "exit code 3", "SIGSEGV".
  std::string text() const;
};

/// "SIGKILL", or "signal 99" for one without a name.
std::string signal_name(int signal);

/// What every rank gets from the launcher beside its plan.
struct Inheritance {
  int arena;     ///< the world's memory
  int registry;  ///< the guardian's
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

  /// Returns once the program is executing.
  /// Throws: InvalidArgument when it cannot be executed.
  void await_program();

  pid_t pid() const { return pid_; }

  /// How it ended, or empty while it runs. Leaves it to be reaped.
  std::optional<Ending> ending() const;
  /// Whether it is stopped, as by SIGSTOP.
  bool stopped() const;
  /// Sends to the rank and all its descendants that kept to its process group. False when there is
  /// none.
  bool signal_group(int signal) const noexcept;
  /// Takes the ended process, and ended orphans of its group, off the kernel's books.
  void reap() noexcept;

 private:
  pid_t pid_ = -1;
  std::string program_;
  Descriptor obstacle_;  ///< brings errno when execve fails, and ends when it succeeds
};

}  // namespace lockstep::launch
