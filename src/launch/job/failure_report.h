#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/host/world/world.h"
#include "core/failure.h"
#include "launch/job/console.h"
#include "launch/job/processes.h"
#include "launch/job/rank_process.h"

namespace lockstep::inline v0_2::launch {

/// The facts about one rank of a failed job.
struct RankFacts {
  bool failed = false;   ///< it ended with an error, or by a signal that the launcher did not send
  bool crashed = false;  ///< it ended by such a signal
  bool late = false;     ///< it ended more than 100 ms after the first failure
  bool raised_failure = false;  ///< it raised the world's failure, which another rank caused
  bool wrote_error = false;     ///< it wrote to stderr
  bool shows_error = false;     ///< what it wrote contains the text of its own error
  std::optional<detail::ErrorRecord> error = {};
};

/// The rank that caused the failure of a job; nullopt if no rank failed. recorded is the rank at
/// fault according to the world's failure record. If several ranks have errors of their own, the
/// world records the one that leaves first; a rank with an error text then takes precedence over
/// it.
///
/// Ranks that fail at nearly the same time end in any order, so the order is not used. Priority:
/// ranks with an error of their own, then ranks that failed without an error text, then ranks that
/// raise or repeat another rank's failure. Among equal ranks, one whose stderr contains its error
/// comes first, then one that wrote anything to stderr, then the lowest rank.
std::optional<int> rank_at_fault(std::span<const RankFacts> ranks, std::optional<int> recorded);

/// The roles of a rank in a failure, from the least likely cause to the most likely.
enum class Role {
  bystander,            ///< it did not fail
  follower,             ///< it raised or repeated another rank's failure
  lost_node,            ///< not a rank: the launcher of a node was lost
  failed_late,          ///< it failed without an error text, after others
  failed,               ///< it failed without an error text
  erred_and_was_ended,  ///< it has an error of its own; the launcher ended it
  erred                 ///< it ended by an error of its own, or crashed
};

/// The facts about the rank that caused the failure of a job.
struct FirstCause {
  int rank = 0;  ///< on this host
  Role role = Role::failed;
  std::string who = {};  ///< "rank 1 of 2 failed first: it ended with exit code 3 (host a, pid 77)"
  std::string reason = {};                   ///< text of its recorded failure
  std::vector<std::string> last_lines = {};  ///< of its stderr
  bool lines_hold_reason = false;            ///< last_lines contain the reason
  bool lines_shown_last = false;  ///< last_lines are the last output that the launcher has shown
};

/// The result of one attempt to run a job.
struct Outcome {
  int code = 0;                          ///< exit code of the job; 128 + signal for a signal
  std::optional<FirstCause> cause = {};  ///< of a failure
  bool reported = false;                 ///< whether report(cause) was written
  std::optional<int> end_signal = {};    ///< the signal that asked the launcher to end
  std::string signalled = {};            ///< " on host b", if another node got it
  bool may_restart = false;              ///< all nodes may start the world again
  std::vector<std::string> survivors =
      {};  ///< processes that SIGKILL did not end, as survivor_text()
};

/// The result as a text for the other nodes of the job.
std::string text_of(const Outcome& outcome);
/// Makes the result of this node that of all nodes, whose texts are in their order. The first cause
/// is the most likely one of all nodes. A signal that any node got is a signal to all.
Outcome agreed(Outcome own, int node, const std::vector<std::string>& texts);

/// The failure of a rank that the launcher noticed first.
struct FirstFailure {
  int rank;  ///< on this host; -1: of another node
  std::chrono::steady_clock::time_point time;
};

/// The world's failure record, if a rank wrote it.
std::optional<detail::Failure> recorded_failure(const host::World& world,
                                                const std::vector<Member>& members);
/// The text with which the launcher records the end of a rank as a failure of the world.
std::string end_text(const Member& member);

/// Determines the first cause of an attempt in which a rank failed; nullopt if no rank of this host
/// can be it.
std::optional<FirstCause> first_cause(const Plan& plan, const std::vector<Member>& members,
                                      const Inheritance& inheritance, const Streams& streams,
                                      const FirstFailure& first);

/// The last paragraph of a failed job. It leaves out lines that are the last output shown.
std::string report(const FirstCause& cause, bool colour = false);

/// The line before a restart: "restart 1 of 3: …".
std::string restart_line(const FirstCause& cause, int restart, int most,
                         std::chrono::milliseconds delay, bool colour = false);

}  // namespace lockstep::launch
