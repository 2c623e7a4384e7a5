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

/// The time between a failure and the next attempt. It doubles from one failure to the next, up to
/// a minute, and begins anew after an attempt that lasted that long.
class Backoff {
 public:
  using Milliseconds = std::chrono::milliseconds;
  static constexpr Milliseconds longest{60'000};

  explicit Backoff(Milliseconds first) : first_(first), next_(first) {}

  /// After an attempt that failed after this time.
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

/// One attempt to run a job, from its first process to its last: a single loop over the ranks'
/// output and the launcher's signals. World, guardian and processes are this attempt's own.
class Supervisor {
 public:
  /// Takes what the job needs from the system; starts no rank.
  Supervisor(const Plan& plan, Console& console);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  /// Starts all ranks and waits for their end.
  Outcome run();

 private:
  using Clock = std::chrono::steady_clock;

  struct Member {
    RankProcess process;
    Stream* err;
    std::optional<Ending> ending;
    std::string out_of_memory = {};  ///< why SIGKILL may have ended it
    Clock::time_point end_time = {};
    bool joined = false;  ///< had called init() by its end
    bool ended_by_launcher = false;
    bool was_stopped = false;
    bool lingered = false;  ///< it went on for longer than plan's linger
    bool stays = false;     ///< SIGKILL did not end it in time
    bool gone = false;      ///< it has been reaped, and so has its process group

    bool ended() const { return ending || stays; }
  };

  static constexpr std::chrono::milliseconds between_looks{1000};  ///< at remaining ranks
  /// For ranks that raise because another failed: to report that and end before they are stopped.
  static constexpr std::chrono::milliseconds settling_time{500};

  /// The descriptors that a rank writes to.
  struct Ends {
    Descriptor out;
    Descriptor err;
  };

  enum class Phase {
    running,
    settling,  ///< a rank has failed; the others get a moment to raise and report what that did to
               ///< them
    stopping,  ///< asked to end
    killing,   ///< made to end
    given_up   ///< SIGKILL did not end all of them in time
  };

  Ends add_streams(int rank);
  Descriptor add_stream(int rank, Output& output, Log log);
  void start(int rank, const Ends& ends, int null);

  void turn();
  Clock::time_point next_look() const;
  void handle_signals();
  void look_after_ranks();
  void look_after_guardian();
  void look_at_remaining_ranks();
  void note_end(std::size_t rank, const Ending& ending);
  void fail(std::size_t rank);
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

  std::string own_words(std::size_t rank) const;
  bool cause_is_ending() const;
  std::optional<int> recorded_cause() const;
  std::optional<int> first_cause() const;
  std::optional<int> end_asked() const;
  void tell_cause();
  void read_errors();
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
  std::list<Stream> streams_;
  std::vector<std::pair<int, int>> terminals_;  ///< the launcher's own, and the one made after it
  Subreaper subreaper_;
  std::optional<Guardian> guardian_;
  int guardians_ = 1;
  std::vector<Member> members_;
  RemainingRanks remaining_;
  OomWatch oom_;

  bool started_ = false;  ///< all ranks execute their program
  Phase phase_ = Phase::running;
  std::optional<Clock::time_point> deadline_;
  std::optional<Clock::time_point> tell_at_;  ///< when a cause is told though ranks still run
  Clock::time_point looked_{};                ///< at remaining ranks
  std::optional<int> first_failed_;
  Clock::time_point failed_at_{};
  std::optional<int> interrupted_by_;  ///< before anything had failed
  std::optional<int> asked_;           ///< the first signal that asked the launcher to end
  bool told_ = false;                  ///< the cause
  std::vector<std::string> staying_;   ///< processes that SIGKILL did not end
};

}  // namespace lockstep::launch
