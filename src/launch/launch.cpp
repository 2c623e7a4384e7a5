#include "launch/launch.h"

#include <chrono>
#include <csignal>

#include "core/text.h"
#include "launch/job/console.h"
#include "launch/job/failure_report.h"
#include "launch/job/logs.h"
#include "launch/job/supervisor.h"

namespace lockstep::inline v0_2::launch {
namespace {

using detail::concat;

/// Writes the last lines about a job that is not restarted.
void conclude(const Outcome& outcome, int most, Output& err) {
  const auto ended_by = [&](int signal) {
    return concat("lockstep: ended by ", signal_name(signal));
  };
  if (outcome.cause && !outcome.reported) err.line("", report(*outcome.cause, err.colour()));
  if (!outcome.survivors.empty()) {
    std::string processes;
    for (const auto& one : outcome.survivors) processes += (processes.empty() ? "" : ", ") + one;
    err.line("", concat("lockstep: SIGKILL did not end ", processes,
                        " within 2 s. The launcher ends without waiting any longer; the kernel "
                        "ends such a process when it can."));
  }
  if (!outcome.cause) {
    if (outcome.end_signal && *outcome.end_signal != SIGPIPE) {
      err.line("", ended_by(*outcome.end_signal) +
                       (outcome.survivors.empty() ? ", no rank is left" : ""));
    }
    return;
  }
  if (most == 0 || outcome.end_signal == SIGPIPE) return;
  if (outcome.end_signal) {
    err.line("", concat("lockstep: not started again, as ", signal_name(*outcome.end_signal),
                        " asked it to end"));
  } else if (!outcome.survivors.empty()) {
    err.line("", "lockstep: not started again, as a process of this attempt still runs");
  } else {
    err.line("", most == 1
                     ? std::string("lockstep: not started again: the one restart was used")
                     : concat("lockstep: not started again: all ", most, " restarts were used"));
  }
}

/// How long the readers of a finished job may read nothing. A successful job waits for its reader
/// without a limit, as any program does.
Console::Patience patience_after(const Outcome& outcome) {
  constexpr auto after_failure = std::chrono::seconds(60);
  if (outcome.end_signal) return Console::short_patience;
  return outcome.cause ? Console::Patience(after_failure) : std::nullopt;
}

/// Writes the remaining output, reports lost output, and returns the exit code. Lost output is an
/// error: 1, or 128 + SIGPIPE if the reader has closed the output, or 128 + the signal that ended
/// the wait.
int settle(const Outcome& outcome, Console& console) {
  const auto end_signal = console.drain(patience_after(outcome));
  auto& [out, err] = console.outputs;
  if (out.error() != 0) console.losses.add("stdout", out.error());
  if (err.error() != 0) console.losses.add("stderr", err.error());
  if (out.unread() > 0) console.losses.add_unread("stdout", out.unread());
  if (err.unread() > 0) console.losses.add_unread("stderr", err.unread());
  if (console.losses.empty()) return outcome.code;
  const bool gone = out.broken() || err.broken();
  auto& output = err.unread() > 0 && !err.same_place(out) ? out : err;
  output.line(
      "", concat("lockstep: ", gone ? "the reader of its output has closed it" : "output was lost",
                 ": ", console.losses.text()));
  console.drain(Console::short_patience);
  if (outcome.code != 0) return outcome.code;
  return end_signal ? 128 + *end_signal : gone ? 128 + SIGPIPE : 1;
}

}  // namespace

int run(const Plan& plan) {
  using Clock = std::chrono::steady_clock;
  open_standard_descriptors();
  Console console(plan.options.forward_signals);
  const auto logs = lock_logs(plan.options.log_directory, plan.run_id);
  Backoff backoff(plan.options.restart_delay);
  const int most = plan.options.max_restarts;
  for (int restarts = 0;; ++restarts) {
    const auto begin = Clock::now();
    const Plan attempt = attempt_of(plan, restarts);
    Outcome outcome = Supervisor(attempt, console).run();
    auto& err = console.outputs.err;
    const bool over = !outcome.cause || outcome.end_signal || !outcome.survivors.empty();
    if (!over && restarts < most) {
      const auto lasted =
          std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
      const auto delay = backoff.after(lasted);
      err.line("", restart_line(*outcome.cause, restarts + 1, most, delay, err.colour()));
      outcome.end_signal = console.pause(delay);
      if (!outcome.end_signal) continue;
    }
    for (const int signal : console.to_forward) {
      err.line("", concat("lockstep: ", signal_name(signal),
                          " was not forwarded, because no rank was left"));
    }
    conclude(outcome, most, err);
    return settle(outcome, console);
  }
}

}  // namespace lockstep::launch
