#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::inline v0_2::launch {

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

  /// stall: time after which a rank is reported; 0: never. limit: longest time that such a rank may
  /// run; nullopt: no limit.
  RemainingRanks(int ranks, Seconds stall, std::optional<Seconds> limit)
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
    std::chrono::milliseconds processor_time;  ///< used before since
  };

  void forget_gap(Clock::time_point now);
  std::string line(Clock::time_point now, const Known& known) const;

  int ranks_;
  Seconds stall_;
  std::optional<Seconds> limit_;
  std::optional<Clock::time_point> updated_;
  std::map<int, Known> known_;
};

}  // namespace lockstep::launch
