#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <string>

#include "launch/plan.h"

namespace lockstep::inline v0_2::tune {

/// How long a run of a program is measured.
struct Durations {
  std::chrono::duration<double> warm_up{1};  ///< from the end of the first step
  std::chrono::duration<double> measured{3};
  std::chrono::duration<double> limit{60};  ///< from the start to the end of the measurement
};

/// The result of one run.
struct Trial {
  double step = 0;           ///< seconds of a step, the mean over ranks
  std::uint64_t steps = 0;   ///< measured steps of the rank that made the fewest
  std::string problem = {};  ///< why nothing was measured; empty: something was
};

/// A signal asked this process to end during a trial.
struct Interrupted : std::exception {
  explicit Interrupted(int number) : signal(number) {}
  const char* what() const noexcept override { return "interrupted"; }
  int signal;
};

/// Runs the plan, counts the steps of its ranks by their flight records, and ends the ranks:
/// SIGTERM, and SIGKILL after 5 s. A step ends when a front end has exchanged and updated. Output
/// of the program is discarded, apart from the last lines of a run that fails. No process is left.
///
/// For a program with one thread.
/// Throws: Interrupted, after the ranks have ended. CommError if the system refuses a process.
Trial run_trial(const launch::Plan& plan, const Durations& durations);

}  // namespace lockstep::tune
