#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/host/world.h"
#include "core/error_record.h"
#include "launch/rank_process.h"

namespace lockstep::inline v0_2::launch {

/// All that is known of one rank of a failed job.
struct Account {
  bool failed = false;   ///< it ended with an error, or by a signal that the launcher did not send
  bool crashed = false;  ///< that was a signal
  bool late = false;     ///< others had failed a while before
  bool raised_failure = false;  ///< the world's failure was raised in it, which another rank caused
  bool wrote_error = false;     ///< something to stderr
  bool shows_error = false;     ///< the text of its own error is among that
  std::optional<detail::ErrorRecord> error = {};
};

/// The rank that has the cause of a failed job; none when no rank failed. recorded is the rank that
/// the ranks themselves recorded in their world. Of several ranks with errors of their own the
/// world records the one that leaves first. A rank whose error can be read then takes precedence
/// over it.
///
/// Ranks that fail together end in any order, so the order decides nothing by itself. A rank with
/// an error of its own comes before one that failed without a word, and both before ranks that
/// repeat or raise what another rank caused. Among equals, one whose stderr shows its error comes
/// first, then one that wrote anything to stderr, then the lowest number.
std::optional<int> rank_at_fault(std::span<const Account> ranks, std::optional<int> recorded);

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
  std::vector<std::string> last_lines = {};      ///< of its stderr
  bool lines_hold_reason = false;                ///< it printed the reason itself
  bool lines_shown_last = false;                 ///< the user sees them, and nothing after them
};

/// How one attempt to run a job ended.
struct Outcome {
  int code = 0;                           ///< as a shell counts: 128 + signal
  std::optional<FirstCause> cause = {};   ///< of a failure
  bool told = false;                      ///< report(cause) has been written
  std::optional<int> asked = {};          ///< the signal by which the launcher was asked to end
  std::vector<std::string> staying = {};  ///< processes that SIGKILL did not end, from staying()
};

/// The paragraph that a failed job ends with. It does not repeat lines that the user has just read.
std::string report(const FirstCause& cause, bool colour = false);

/// The line that a failed job goes on with: restart 1 of 3, and so on, after this delay.
std::string restart_line(const FirstCause& cause, int restart, int most,
                         std::chrono::milliseconds delay, bool colour = false);

/// "rank 1 (pid 77, in an uninterruptible wait of the kernel)".
std::string staying(const std::string& what, pid_t pid);

}  // namespace lockstep::launch
