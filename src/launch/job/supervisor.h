#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

#include "comm/control/connection.h"
#include "launch/job/console.h"
#include "launch/job/failure_report.h"
#include "launch/job/processes.h"
#include "launch/job/rank_process.h"
#include "launch/plan.h"
#include "launch/system.h"

namespace lockstep::inline v0_2::launch {

/// The delay between a failure and the next attempt. It doubles with each failure, up to a minute,
/// and starts again after an attempt that lasted a minute.
class Backoff {
 public:
  using Milliseconds = std::chrono::milliseconds;
  static constexpr Milliseconds longest{60'000};

  explicit Backoff(Milliseconds first) : first_(first), next_(first) {}

  /// The delay after an attempt that lasted for this time.
  Milliseconds after(Milliseconds lasted) {
    if (lasted >= longest) next_ = first_;
    const auto delay = next_;
    next_ = std::min(2 * next_, std::max(first_, longest));
    return delay;
  }

 private:
  Milliseconds first_;
  Milliseconds next_;
};

/// One attempt to run a job: a single loop over the ranks' output and the launcher's signals. Each
/// attempt has its own world, guardian and processes.
class Supervisor {
 public:
  /// Allocates the resources of the attempt; starts no rank. rank_0_listens: with several nodes,
  /// the socket on which rank 0 listens, if it is on this one.
  Supervisor(const Plan& plan, Console& console, Descriptor rank_0_listens = {});

  /// Starts all ranks and waits until they and those of other nodes have ended. The outcome is that
  /// of all nodes.
  Outcome run();

 private:
  using Clock = std::chrono::steady_clock;

  /// In the order in which an attempt enters them. Note [The life of an attempt] is in
  /// supervisor.cpp.
  enum class Phase { running, settling, stopping, killing, given_up };

  /// The first signal that asked the launcher to end.
  struct EndSignal {
    int number;
    bool by_node;  ///< only another node has got it
  };

  void poll_once();
  void handle_signals();
  void check_ranks();
  void note_end(Member& member, const Ending& ending);
  void check_remaining_ranks();
  void follow_nodes();
  void tell_nodes(const control::Frame& frame);
  void fail(int rank);
  void end_settling();
  void interrupt(int signal, bool by_node = false);
  void stop(int signal, std::chrono::milliseconds grace);
  void kill_all();
  void escalate();
  void end_groups();
  std::optional<FirstCause> first_cause() const;
  void report_cause();
  Outcome outcome() const;

  const Plan& plan_;
  Console& console_;
  Inheritance inheritance_;
  Streams streams_;
  Processes processes_;
  RemainingRanks remaining_;
  OomWatch oom_;

  Phase phase_ = Phase::running;
  std::optional<Clock::time_point> deadline_;   ///< of phase_
  std::optional<Clock::time_point> report_at_;  ///< time of report_cause(), if ranks still run
  bool reported_ = false;                       ///< whether report_cause() wrote the cause
  Clock::time_point checked_{};                 ///< time of the last check_remaining_ranks()
  std::optional<FirstFailure> first_failure_;
  std::optional<EndSignal> end_signal_;
};

}  // namespace lockstep::launch
