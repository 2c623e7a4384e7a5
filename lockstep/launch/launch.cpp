#include "lockstep/launch/launch.h"

#include <csignal>

#include "lockstep/core/text.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/report.h"
#include "lockstep/launch/supervisor.h"

namespace lockstep::launch {
namespace {

using detail::concat;

/// The last words about a job that is not started again.
void conclude(const Outcome& outcome, int most, Output& err) {
  if (!outcome.cause) {
    // Who closed our output knows, and cannot read it.
    if (outcome.asked && *outcome.asked != SIGPIPE) {
      err.line("", concat("lockstep: ended by ", signal_name(*outcome.asked), ", no rank is left"));
    }
    return;
  }
  err.line("", report(*outcome.cause));
  if (most == 0) return;
  if (outcome.asked) {
    err.line("", concat("lockstep: not started again, as ", signal_name(*outcome.asked),
                        " asked it to end"));
  } else {
    err.line("", concat("lockstep: not started again: all ", most,
                        most == 1 ? " restart" : " restarts", " were used"));
  }
}

}  // namespace

int run(const Plan& plan) {
  open_standard_descriptors();
  Console console;
  const int most = plan.options.max_restarts;
  for (int restarts = 0;; ++restarts) {
    const Plan attempt = attempt_of(plan, restarts);
    const Outcome outcome = Supervisor(attempt, console).run();
    auto& err = console.outputs.err;
    if (!outcome.cause || outcome.asked || restarts == most) {
      conclude(outcome, most, err);
      return outcome.code;
    }
    err.line("", restart_line(*outcome.cause, restarts + 1, most));
  }
}

}  // namespace lockstep::launch
