#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <vector>

namespace lockstep::testing {

/// The worlds that a worker has run. In memory that it shares with its parent.
struct WorkerReport {
  std::uint64_t seed = 0;  ///< the world that runs, or that broke a promise
  std::uint64_t worlds = 0;
  std::uint64_t faulty = 0;
  std::uint64_t events = 0;
  std::array<char, 1000> violation{};
};

/// Processes that run worlds, each some of the seeds. A process that ends returns the memory of
/// dead ranks, and reports the seed of a world that crashes.
class WorldWorkers {
 public:
  WorldWorkers(std::uint64_t first, std::uint64_t count, bool joining, int jobs,
               std::uint64_t most_failures)
      : next_(first),
        end_(first + count),
        joining_(joining),
        jobs_(jobs),
        most_failures_(most_failures) {}

  /// Runs all worlds, until too many have broken a promise. Prints those, and returns their number.
  std::uint64_t run();

  WorkerReport total;

 private:
  struct Worker {
    pid_t pid;
    WorkerReport* report;
    std::uint64_t last;  ///< the seed after its last
  };

  void start(std::uint64_t first, std::uint64_t last);
  void collect();

  std::uint64_t next_;
  std::uint64_t end_;
  bool joining_;
  int jobs_;
  std::uint64_t most_failures_;
  std::vector<Worker> workers_;
  std::uint64_t failures_ = 0;
};

}  // namespace lockstep::testing
