#pragma once

#include <cstdint>
#include <string>

#include "tests/simulation/scenario.h"

namespace lockstep::testing {

/// The result of a simulated world.
struct Verdict {
  std::string violation;    ///< empty if every promise was kept
  std::uint64_t trace = 0;  ///< the hash of all events
  std::uint64_t events = 0;
  bool faulty = false;  ///< whether the fault has happened
};

/// Runs a world, and its second attempt if it is restarted, and checks what Lockstep promises.
Verdict run_world(const Scenario& scenario, bool prints_trace = false);

}  // namespace lockstep::testing
