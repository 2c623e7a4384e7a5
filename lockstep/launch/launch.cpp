#include "lockstep/launch/launch.h"

#include <csignal>

#include "lockstep/core/text.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/report.h"
#include "lockstep/launch/supervisor.h"

namespace lockstep::launch {
namespace {

using detail::concat;

/// The last words about a job that is not started again. A reader that has gone is told of when all
/// is known that was lost.
void conclude(const Outcome& outcome, int most, Output& err) {
  if (!outcome.cause) {
    if (outcome.asked && *outcome.asked != SIGPIPE) {
      err.line("", concat("lockstep: ended by ", signal_name(*outcome.asked), ", no rank is left"));
    }
    return;
  }
  err.line("", report(*outcome.cause));
  if (most == 0 || outcome.asked == SIGPIPE) return;
  if (outcome.asked) {
    err.line("", concat("lockstep: not started again, as ", signal_name(*outcome.asked),
                        " asked it to end"));
  } else {
    err.line("", concat("lockstep: not started again: all ", most,
                        most == 1 ? " restart" : " restarts", " were used"));
  }
}

/// Says what could not be written. That alone is an error too, as with GNU's tools: its exit code
/// is 1, or that of SIGPIPE where the reader has gone.
int settle(int code, Console& console) {
  console.drain();  // only then is all known
  auto& [out, err] = console.outputs;
  if (out.error() != 0) console.losses.add("stdout", out.error());
  if (err.error() != 0) console.losses.add("stderr", err.error());
  if (console.losses.empty()) return code;
  const bool unread = out.broken() || err.broken();
  err.line("", concat("lockstep: ", unread ? "nobody reads its output" : "output was lost", ": ",
                      console.losses.text()));
  console.drain();
  return code != 0 ? code : unread ? 128 + SIGPIPE : 1;
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
      return settle(outcome.code, console);
    }
    err.line("", restart_line(*outcome.cause, restarts + 1, most));
  }
}

}  // namespace lockstep::launch
