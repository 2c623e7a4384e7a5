#pragma once

#include <algorithm>
#include <chrono>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/host/world.h"
#include "core/error_record.h"
#include "launch/console.h"
#include "launch/failure_report.h"
#include "launch/guardian.h"
#include "launch/oom_watch.h"
#include "launch/output.h"
#include "launch/plan.h"
#include "launch/rank_process.h"
#include "launch/remaining_ranks.h"
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
  /// Allocates the resources of the attempt; starts no rank.
  Supervisor(const Plan& plan, Console& console);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  /// Starts all ranks and waits until they have ended.
  Outcome run();

 private:
  using Clock = std::chrono::steady_clock;

  struct Member {
    RankProcess process;
    Stream* err;
    std::optional<Ending> ending;
    std::string out_of_memory = {};  ///< text about an out-of-memory kill, if SIGKILL ended it
    Clock::time_point end_time = {};
    bool joined = false;  ///< it had called init() before its end
    bool ended_by_launcher = false;
    bool was_stopped = false;
    bool lingered = false;  ///< it exceeded the plan's linger
    bool stays = false;     ///< SIGKILL did not end it within 2 s
    bool gone = false;      ///< it was reaped, and its process group is empty

    bool ended() const { return ending || stays; }
  };

  static constexpr std::chrono::milliseconds between_checks{
      1000};  ///< interval of check_remaining_ranks()
  /// Time for other ranks to raise the failure, report it and end by themselves.
  static constexpr std::chrono::milliseconds settling_time{500};

  /// The descriptors to which a rank writes.
  struct WriteEnds {
    Descriptor out;
    Descriptor err;
  };

  enum class Phase {
    running,
    settling,  ///< a rank has failed; the others get time to report the failure and end
    stopping,  ///< ranks were sent SIGTERM, or the signal that the launcher received
    killing,   ///< ranks were sent SIGKILL
    given_up   ///< SIGKILL did not end all ranks in time
  };

  /// Removes the copies of an earlier job in the log folder.
  void remove_earlier_flight_records() const;
  WriteEnds add_streams(int rank);
  Descriptor add_stream(int rank, Output& output, Log log);
  void start(int rank, const WriteEnds& ends, int null);

  void poll_once();
  Clock::time_point next_check() const;
  void handle_signals();
  void check_ranks();
  void check_guardian();
  void check_remaining_ranks();
  void note_end(std::size_t rank, const Ending& ending);
  void fail(std::size_t rank);
  bool is_ready_for(int signal, std::size_t rank) const;
  void forward_signals();
  void interrupt(int signal);
  void stop(int signal, std::chrono::milliseconds grace);
  void kill_all() noexcept;
  void give_up();
  void escalate();
  void signal_all(int signal) noexcept;

  bool all_ended() const;
  bool groups_left();
  void end_leftovers();
  void end_orphans();
  void suspend();

  std::string launcher_text(std::size_t rank) const;
  bool cause_is_ending() const;
  bool cause_is_dumping_core() const;
  std::optional<int> recorded_cause() const;
  std::optional<int> first_cause() const;
  std::optional<int> pending_end_signal() const;
  void report_cause();
  void read_errors();
  std::optional<detail::ErrorRecord> error_of(std::size_t rank) const;
  Outcome outcome() const;
  FirstCause describe(int cause) const;

  const Plan& plan_;
  std::shared_ptr<host::World> world_;
  FileLimit files_;
  Descriptor arena_;
  detail::ErrorRecords errors_;
  Descriptor errors_descriptor_;
  std::set<pid_t> children_before_;
  Outputs& outputs_;
  Losses& losses_;
  SignalWatch& signals_;
  std::set<int>& to_forward_;  ///< Console::to_forward
  std::list<Stream> streams_;
  std::vector<std::pair<int, int>>
      terminals_;  ///< the launcher's terminal, and the pseudo-terminal of rank 0
  Subreaper subreaper_;
  std::optional<Guardian> guardian_;
  int guardians_ = 1;
  std::vector<Member> members_;
  RemainingRanks remaining_;
  OomWatch oom_;

  bool started_ = false;  ///< all ranks execute their program
  Phase phase_ = Phase::running;
  std::optional<Clock::time_point> deadline_;
  std::optional<Clock::time_point>
      report_at_;                ///< time at which the cause is reported although ranks still run
  Clock::time_point checked_{};  ///< at remaining ranks
  std::optional<int> first_failed_;
  Clock::time_point failed_at_{};
  std::set<int> forwarded_;             ///< signals that were sent to the ranks
  bool waits_to_forward_ = false;       ///< it was reported that a rank is not ready for a signal
  std::optional<int> interrupted_by_;   ///< signal that was received before any failure
  std::optional<int> end_signal_;       ///< first signal that asked the launcher to end
  bool reported_ = false;               ///< the cause
  std::vector<std::string> survivors_;  ///< processes that SIGKILL did not end
};

}  // namespace lockstep::launch
