#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/rank_process.h"

namespace lockstep::launch {

/// What is known of the rank that ended a job.
struct FirstCause {
  int rank = 0;
  int ranks = 1;
  pid_t pid = 0;
  Ending ending;
  bool ended_by_launcher = false;  ///< it was at fault without ending: it hung
  bool stopped = false;            ///< by SIGSTOP, when the launcher stopped the job
  bool joined = false;             ///< whether it ever reached init()
  std::string reason;              ///< the world's failure, where ranks recorded one
  std::vector<std::string> last_lines;
};

/// How one attempt to run a job ended.
struct Outcome {
  int code = 0;                          ///< as a shell counts: 128 + signal
  std::optional<FirstCause> cause = {};  ///< of a failure
  std::optional<int> asked = {};         ///< the signal by which the launcher was asked to end
};

/// The paragraph that a failed job ends with.
std::string report(const FirstCause& cause);

/// The line that a failed job goes on with: restart 1 of 3, and so on.
std::string restart_line(const FirstCause& cause, int restart, int most);

}  // namespace lockstep::launch
