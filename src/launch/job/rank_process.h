#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "comm/host/world/world.h"
#include "launch/job/console.h"
#include "launch/job/output.h"
#include "launch/plan.h"
#include "launch/system.h"

namespace lockstep::inline v0_2::launch {

/// The words in the form that execv() and execve() require: pointers to them, null-terminated.
std::vector<char*> pointers_to(std::vector<std::string>& words);

/// "NAME=VALUE" of each inherited variable that own does not replace, and of those of own.
std::vector<std::string> environment_of(const Variables& inherited, const Variables& own);

/// What every rank of an attempt inherits.
struct Inheritance {
  /// rank_0_listens: the socket on which rank 0 listens, or none.
  /// Throws: CommError if the system refuses memory or descriptors.
  Inheritance(int ranks, const SignalWatch& watch, Descriptor rank_0_listens);

  std::shared_ptr<host::World> world;
  FileLimit files;
  Descriptor arena;      ///< the world's memory
  Descriptor listening;  ///< inherited by the first rank of this host
  Descriptor null;       ///< /dev/null, the stdin of a rank that does not read the launcher's
  const SignalWatch& signals;
};

/// One rank's process, the leader of its own process group. Its pid cannot be reused before it is
/// reaped.
class RankProcess {
 public:
  /// Starts the process, which executes the program asynchronously. First it writes its process
  /// group, one pid_t, to the descriptor `registry`.
  /// Throws: CommError if the process cannot be started.
  RankProcess(const Plan& plan, int rank, const WriteEnds& streams, const Inheritance& inheritance,
              int registry);

  /// Reads whether execve() has returned: the program runs, or its process has ended. On a hanging
  /// file system, execve() may take long.
  /// Throws: InvalidArgument if the program cannot be executed.
  void check_start();
  /// Readable when execve() has returned; -1 once check_start() has read that.
  int start_fd() const { return exec_error_.get(); }

  pid_t pid() const { return pid_; }

  /// Whether a signal such as SIGSTOP has stopped the process.
  bool stopped() const;
  /// Whether the process has a handler for the signal, ignores it, or blocks it as for sigwait(),
  /// but not all signals.
  bool handles(int signal) const;
  /// Sends a signal to the rank's process group. False if the group has no process.
  bool signal_group(int signal) const noexcept;
  /// Reaps the ended process, and ended orphans of its process group.
  void reap() noexcept;

 private:
  pid_t pid_ = -1;
  std::string program_;
  Descriptor exec_error_;  ///< pipe: receives errno if execve() fails, is closed if it succeeds
};

}  // namespace lockstep::launch
