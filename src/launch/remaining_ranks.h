#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::inline v0_2::launch {

/// Why a rank that runs is worth a line.
enum class Remains {
  left,     ///< it has left the world
  last,     ///< all other ranks have ended
  stopped,  ///< a signal has stopped it
};

/// Ranks that still run although their part in the job may be over. They may compute alone, which
/// is their right, or hang: the launcher says what they do, after 10 s and then each time that as
/// long again has passed.
class RemainingRanks {
 public:
  using Clock = std::chrono::steady_clock;
  struct Rank {
    int rank;
    pid_t pid;
    Remains why;
  };

  /// Without a limit such ranks may go on for ever.
  RemainingRanks(int ranks, std::optional<std::chrono::duration<double>> limit)
      : ranks_(ranks), limit_(limit) {}

  /// Called about once a second with those that remain now. Returns lines to show. Time in which it
  /// was not called, as that of a suspended job, does not count.
  std::vector<std::string> look(Clock::time_point now, const std::vector<Rank>& remaining);

  /// A rank that has remained for longer than the limit. A stopped one has none.
  std::optional<int> overdue(Clock::time_point now) const;

 private:
  struct Known {
    Rank rank;
    Clock::time_point since;
    Clock::time_point next_line;
    std::chrono::milliseconds processor_time;  ///< until since
  };

  void forget_gap(Clock::time_point now);
  std::string line(Clock::time_point now, const Known& known) const;

  int ranks_;
  std::optional<std::chrono::duration<double>> limit_;
  std::optional<Clock::time_point> looked_;
  std::map<int, Known> known_;
};

}  // namespace lockstep::launch
