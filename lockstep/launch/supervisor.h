#pragma once

#include <chrono>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "lockstep/comm/host/world.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/guardian.h"
#include "lockstep/launch/plan.h"
#include "lockstep/launch/rank_process.h"
#include "lockstep/launch/report.h"
#include "lockstep/launch/stream.h"
#include "lockstep/launch/system.h"

namespace lockstep::launch {

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
    bool joined = false;  ///< had called init() by its end
    bool ended_by_launcher = false;
    bool was_stopped = false;
    bool gone = false;  ///< reaped, and nobody is left in its group
  };

  /// What a rank writes to.
  struct Ends {
    Descriptor out;
    Descriptor err;
  };

  enum class Phase {
    running,
    settling,  ///< a rank has failed; the others get a moment to raise and report what that did to
               ///< them
    stopping,  ///< asked to end
    killing    ///< made to end
  };

  Ends add_streams(int rank);
  Descriptor add_stream(int rank, Output& output, Log log);
  void start(int rank, const Ends& ends, int null);

  void turn();
  void handle_signals();
  void look_after_ranks();
  void note_end(std::size_t rank, const Ending& ending);
  void interrupt(int signal);
  void stop(int signal, std::chrono::milliseconds grace);
  void kill_all() noexcept;
  void escalate();
  void signal_all(int signal) noexcept;

  bool all_ended() const;
  bool groups_left();
  void end_leftovers();
  void suspend();

  std::optional<int> first_cause() const;
  std::optional<int> end_asked() const;
  Outcome outcome() const;
  Outcome failure(int cause) const;

  const Plan& plan_;
  std::shared_ptr<host::World> world_;
  FileLimit files_;
  Descriptor arena_;
  std::set<pid_t> children_before_;
  Outputs& outputs_;
  Losses& losses_;
  SignalWatch& signals_;
  std::list<Stream> streams_;
  std::vector<std::pair<int, int>> terminals_;  ///< the launcher's own, and the one made after it
  Subreaper subreaper_;
  Guardian guardian_;
  std::vector<Member> members_;

  Phase phase_ = Phase::running;
  std::optional<Clock::time_point> deadline_;
  std::optional<int> first_failed_;
  std::optional<int> interrupted_by_;  ///< before anything had failed
  std::optional<int> asked_;           ///< the first signal that asked the launcher to end
};

}  // namespace lockstep::launch
