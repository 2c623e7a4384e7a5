#pragma once

#include <cstdint>

namespace lockstep::testing {

/// The worlds that have run.
struct WorldCounts {
  std::uint64_t worlds = 0;
  std::uint64_t faulty = 0;
  std::uint64_t events = 0;
  std::uint64_t failures = 0;
};

/// Runs worlds in a process for each core, each some of the seeds, until too many have broken a
/// promise. Prints those. A process that ends returns the memory of dead ranks, and reports the
/// seed of a world that crashes.
WorldCounts run_worlds(std::uint64_t first, std::uint64_t count, bool joining,
                       std::uint64_t most_failures);

}  // namespace lockstep::testing
