#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "comm/host/world.h"
#include "launch/rank_process.h"

namespace lockstep::inline v0_2::launch {

/// The known facts about the rank that ended a job.
struct FirstCause {
  int rank = 0;
  int ranks = 1;
  pid_t pid = 0;
  std::optional<Ending> ending = {};  ///< none while it has not ended
  std::string out_of_memory = {};     ///< why SIGKILL may have ended it
  bool ended_by_launcher = false;     ///< it was at fault without ending
  bool stopped = false;               ///< by SIGSTOP, when the launcher stopped the job
  bool joined = false;                ///< whether it ever reached init()
  /// It went on for longer than this after it had left the world or all others had ended.
  std::optional<std::chrono::duration<double>> lingered = {};
  std::optional<host::Failure::Kind> kind = {};  ///< of what was recorded of it
  std::string reason = {};                       ///< the same in words
  std::vector<std::string> last_lines = {};
};

/// How one attempt to run a job ended.
struct Outcome {
  int code = 0;                           ///< as a shell counts: 128 + signal
  std::optional<FirstCause> cause = {};   ///< of a failure
  bool told = false;                      ///< report(cause) has been written
  std::optional<int> asked = {};          ///< the signal by which the launcher was asked to end
  std::vector<std::string> staying = {};  ///< processes that SIGKILL did not end, from staying()
};

/// The paragraph that a failed job ends with.
std::string report(const FirstCause& cause);

/// The line that a failed job goes on with: restart 1 of 3, and so on, after this delay.
std::string restart_line(const FirstCause& cause, int restart, int most,
                         std::chrono::milliseconds delay);

/// "rank 1 (pid 77, in an uninterruptible wait of the kernel)".
std::string staying(const std::string& what, pid_t pid);

}  // namespace lockstep::launch
