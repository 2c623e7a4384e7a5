#pragma once

#include <poll.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/system/memory.h"
#include "core/text.h"
#include "launch/job/rank_process.h"
#include "launch/plan.h"
#include "launch/system.h"

namespace lockstep::inline v0_2::launch {

/// A rank of an attempt, and what happened to it.
struct Member {
  int rank = 0;  ///< on this host
  int world_rank = 0;
  RankProcess process;
  std::optional<Ending> ending = {};  ///< nullopt if it had not ended
  std::chrono::steady_clock::time_point end_time = {};
  std::string out_of_memory = {};  ///< text about an out-of-memory kill, if SIGKILL ended it
  bool ended_by_launcher = false;  ///< it had not ended by itself
  bool forwarded = false;          ///< the launcher forwarded the signal that ended it
  bool stopped = false;            ///< SIGSTOP had stopped it when the launcher ended the job
  bool joined = false;             ///< it had joined the world by init() before its end
  bool stays = false;              ///< SIGKILL did not end it within 2 s
  bool gone = false;               ///< it was reaped, and its process group is empty
  /// The --linger limit, if the rank ran longer than this after it had left the world or all other
  /// ranks had ended.
  std::optional<double> lingered = {};

  bool ended() const { return ending || stays; }
};

/// A process that kills every rank's process group if the launcher is killed. The kernel's
/// parent-death signal is sent to direct children only, and a rank may be a shell.
class Guardian {
 public:
  /// Starts the process.
  /// Throws: CommError if it cannot be started.
  Guardian();
  /// Ends the guardian process only.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  /// The descriptor to which a rank writes its process group (one pid_t) before it executes its
  /// program.
  int registry() const { return registry_.get(); }
  /// The process never ends by itself.
  pid_t pid() const { return pid_; }

 private:
  Descriptor registry_;
  pid_t pid_ = -1;
};

/// The processes of one attempt: its ranks, their descendants and the guardian. From the
/// first object on, orphaned descendants become children of this process. The destructor kills what
/// runs.
class Processes {
 public:
  /// Starts the guardian.
  Processes();
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  /// Starts all ranks, with the streams of each.
  void start(const Plan& plan, const std::vector<WriteEnds>& streams,
             const Inheritance& inheritance);
  std::vector<Member>& members() { return members_; }
  const std::vector<Member>& members() const { return members_; }

  /// Appends what poll() must wait for until all ranks execute their program.
  void await_start(std::vector<pollfd>& awaited) const;
  /// Throws: InvalidArgument if the program cannot be executed.
  void check_start();

  bool all_ended() const;
  /// Reaps ended ranks. Whether a rank's process group has processes; ranks that stay do not count.
  bool groups_left();
  /// Sends the signal to the process group of every rank.
  void signal_all(int signal) const noexcept;
  /// Sends the pending signals to the ranks that run, and removes them. A signal would end a rank
  /// that is about to install its handler, so it waits until each rank has joined the world or
  /// handles it. A line on err reports the wait.
  void forward(std::set<int>& pending, const host::World& world, Output& err);
  /// Whether forward() has sent the signal.
  bool has_forwarded(int signal) const { return forwarded_.contains(signal); }
  /// Reaps the process if it is an orphan of a rank: no rank, guardian or earlier child.
  void reap_orphan(pid_t pid) const noexcept;
  /// Reports a guardian that has ended.
  void check_guardian(Output& err);
  /// Marks the ranks that SIGKILL has not ended.
  void give_up();
  /// Ends the guardian and the descendants outside the ranks' process groups.
  void end_others();
  /// The processes that SIGKILL did not end, as survivor_text().
  const std::vector<std::string>& survivors() const { return survivors_; }

 private:
  std::set<pid_t> children_before_;
  std::optional<Guardian> guardian_;
  std::vector<Member> members_;
  std::set<int> forwarded_;
  bool wait_reported_ = false;  ///< that of the next pending signal
  std::vector<std::string> survivors_;
};

/// Detects whether the kernel has recently killed a process because memory was short.
class OomWatch {
 public:
  using Clock = std::chrono::steady_clock;

  OomWatch() : before_(groups_.oom_kills()), last_(before_) {}

  /// Call it about once a second. Kills of more than 10 s to 20 s ago are not recent.
  void update(Clock::time_point now) {
    constexpr auto interval = std::chrono::seconds(10);
    if (now - updated_ < interval) return;
    updated_ = now;
    before_ = last_;
    last_ = groups_.oom_kills();
  }
  /// The text about a recent kill; empty if there was none.
  std::string text() const {
    if (groups_.oom_kills() <= before_) return "";
    return detail::concat("the kernel ended a process of ", groups_.oom_scope(),
                          " because memory was short");
  }

 private:
  MemoryGroups groups_;
  std::uint64_t before_;  ///< number of kills, 10 s to 20 s ago
  std::uint64_t last_;
  Clock::time_point updated_ = Clock::now();
};

/// Why a running rank is reported.
enum class RemainReason {
  left,     ///< it has left the world
  last,     ///< all other ranks have ended
  stopped,  ///< a signal has stopped it
};

/// Reports ranks that run although they may have finished their part of the job. They may compute,
/// or hang. Each is reported once.
class RemainingRanks {
 public:
  using Clock = std::chrono::steady_clock;
  struct Rank {
    int rank;
    pid_t pid;
    RemainReason why;
  };

  using Seconds = std::chrono::duration<double>;

  /// stall: time after which a rank is reported; 0: never. limit: longest time in seconds that such
  /// a rank may run; nullopt: no limit.
  RemainingRanks(int ranks, Seconds stall, std::optional<double> limit)
      : ranks_(ranks), stall_(stall), limit_(limit) {}

  /// Call it about once a second with the ranks that remain. Returns lines to display. Time without
  /// calls, such as that of a suspended job, does not count.
  std::vector<std::string> update(Clock::time_point now, const std::vector<Rank>& remaining);

  /// A rank that has remained longer than the limit; stopped ranks have no limit.
  std::optional<int> overdue(Clock::time_point now) const;

 private:
  struct Known {
    Rank rank;
    Clock::time_point since;
    bool reported;
  };

  std::string line(Clock::time_point now, const Known& known) const;

  int ranks_;
  Seconds stall_;
  std::optional<double> limit_;  ///< in seconds
  std::optional<Clock::time_point> updated_;
  std::map<int, Known> known_;
};

}  // namespace lockstep::launch
