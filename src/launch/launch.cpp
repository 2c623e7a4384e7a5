#include "launch/launch.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/deadline.h"
#include "core/environment.h"
#include "core/system/topology.h"
#include "core/text.h"
#include "launch/job/console.h"
#include "launch/job/failure_report.h"
#include "launch/job/nodes.h"
#include "launch/job/output.h"
#include "launch/job/supervisor.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::launch {
namespace {

using detail::concat;

/// Writes the last lines about a job that is not restarted.
void conclude(const Outcome& outcome, int restarts, int most, Output& err) {
  if (outcome.cause && !outcome.reported) err.line("", report(*outcome.cause, err.colour()));
  if (!outcome.survivors.empty()) {
    err.line("", concat("lockstep: SIGKILL did not end ", detail::joined(outcome.survivors, ", "),
                        " within 2 s. The launcher ends without waiting any longer; the kernel "
                        "ends such a process when it can."));
  }
  if (!outcome.cause) {
    if (outcome.end_signal && (*outcome.end_signal != SIGPIPE || !outcome.signalled.empty())) {
      err.line("", concat("lockstep: ended by ", signal_name(*outcome.end_signal),
                          outcome.signalled, outcome.survivors.empty() ? ", no rank is left" : ""));
    }
    return;
  }
  if (most == 0 || outcome.end_signal == SIGPIPE) return;
  const auto why = outcome.end_signal ? concat(signal_name(*outcome.end_signal), " asked it to end")
                   : !outcome.survivors.empty() ? "a process of this attempt still runs"
                   : restarts < most            ? "another node may not start again"
                                                : concat("all restarts were used: ", most);
  err.line("", concat("lockstep: not started again, as ", why));
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
int settle(const Outcome& outcome, Console& console, RemoteNodes* remote) {
  const auto end_signal = console.drain(patience_after(outcome));
  if (remote != nullptr) {
    remote->await_ends(outcome, end_signal ? Console::short_patience : patience_after(outcome),
                       console);
  }
  auto& [out, err] = console.outputs;
  const auto add_losses = [&](const char* place, const Output& output) {
    if (output.error() != 0) console.losses.add(place, std::strerror(output.error()));
    if (output.unread() == 0) return;
    console.losses.add(place, concat("its reader did not take ", output.unread(), " bytes"));
  };
  add_losses("stdout", out);
  add_losses("stderr", err);
  if (console.losses.empty()) return outcome.code;
  const bool gone = out.broken() || err.broken();
  auto& output = err.unread() > 0 && err.place() != out.place() ? out : err;
  output.line(
      "", concat("lockstep: ", gone ? "the reader of its output has closed it" : "output was lost",
                 ": ", console.losses.text()));
  console.drain(Console::short_patience);
  if (outcome.code != 0) return outcome.code;
  return end_signal ? 128 + *end_signal : gone ? 128 + SIGPIPE : 1;
}

/// The text by which a signal during the rendezvous of the nodes ends it on all of them.
std::string interrupted(int signal) {
  return concat("run: ended by ", signal_name(signal), " on host ");
}

/// Connects to the other nodes, and agrees with them on the attempt.
Start join_nodes(const Plan& plan, int restarts, Console& console, RemoteNodes* remote) {
  const auto& node = plan.options.node;
  const auto wait = [&] {
    const auto signal = console.pause(std::chrono::milliseconds(1));
    if (signal && stdin_ended()) std::_Exit(128 + *signal);  // for the others it is lost
    if (signal) throw CommError(concat(interrupted(*signal), detail::host_name()));
  };
  int running = node.count;  // launchers of which none is known to have ended
  // Others may take the place of launchers that were started by hand for the time after which one
  // counts as lost. The timeout of those that wait begins earlier, maybe.
  const bool by_hand = restarts > 0 && remote == nullptr;
  detail::Deadline until(std::min(Environment::get().heartbeat, rendezvous_time(plan.options) / 2));
  console.nodes.reset();
  try {
    console.nodes.emplace(
        plan.options,
        [&] {
          if (remote != nullptr) running = remote->check(console);
          wait();
        },
        [&](int nodes) {
          return node.least > 0 && nodes >= node.least &&
                 (nodes >= running || (by_hand && until.passed()));
        });
  } catch (const TimeoutError& error) {
    if (remote == nullptr || error.rank() < 1) throw;
    throw TimeoutError(
        concat(error.what(), "; node ", error.rank(), " is host ", remote->host(error.rank())));
  }
  auto start = start_attempt(plan, restarts, *console.nodes, wait);
  for (const int number : start.absent) {
    if (node.remote) break;
    console.outputs.err.line(
        "", concat("lockstep: starts without node ", number, " of ", node.count, " (--min-hosts)"));
  }
  if (plan.options.verbose) {
    const auto& made = start.plan;
    console.outputs.err.line(
        "", concat("lockstep: node ", node.number, " of ", node.count, " (host ",
                   detail::host_name(), ") has ",
                   made.options.ranks == 1 ? "rank " : concat("ranks ", made.first_rank, " to "),
                   made.first_rank + made.options.ranks - 1, " of ", made.world_size));
  }
  return start;
}

/// One attempt, on all nodes if there are several.
Outcome run_attempt(const Plan& plan, int& restarts, Console& console, RemoteNodes* remote) {
  const auto& node = plan.options.node;
  if (node.count == 1) return Supervisor(attempt_of(plan, restarts), console).run();
  try {
    auto start = join_nodes(plan, restarts, console, remote);
    restarts = start.plan.restarts;
    if (!start.lost.empty()) {
      return agreed({.may_restart = restarts < plan.options.max_restarts}, node.number, start.lost);
    }
    Supervisor supervisor(start.plan, console, std::move(start.listening));
    return supervisor.run();
  } catch (const std::exception& error) {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
      const std::string text = error.what(), known = interrupted(signal);
      if (!text.starts_with(known)) continue;
      if (remote != nullptr) remote->end_joining();
      Outcome outcome{.code = 128 + signal, .end_signal = signal};
      const auto host = text.substr(known.size());
      if (host != detail::host_name()) outcome.signalled = concat(" on host ", host);
      return outcome;
    }
    if (auto& nodes = console.nodes) {
      const auto text = nodes->failed_text(node.number, detail::host_name(), error.what());
      nodes->send(control::failure_frame({.text = text}));
    }
    throw;
  }
}

}  // namespace

int run(const Plan& plan, RemoteNodes* remote) {
  using Clock = std::chrono::steady_clock;
  open_standard_descriptors();
  Console console(plan.options.forward_signals);
  // Nodes may share the folder, so one locks it. Each writes files of its own ranks.
  const bool locks = plan.options.node.number == 0;
  const auto logs = locks ? lock_logs(plan.options.log_directory, plan.run_id) : nullptr;
  Backoff backoff(plan.options.restart_delay);
  const int most = plan.options.max_restarts;
  for (int restarts = 0;; ++restarts) {
    const auto begin = Clock::now();
    Outcome outcome = run_attempt(plan, restarts, console, remote);
    auto& err = console.outputs.err;
    const auto lost = console.nodes ? console.nodes->lost() : std::vector<int>();
    // Another host may have its number in the next attempt.
    if (plan.options.node.remote && !lost.empty()) outcome.may_restart = false;
    if (remote != nullptr) remote->drop(lost);
    if (outcome.cause && outcome.may_restart) {
      const auto lasted =
          std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
      const auto delay = backoff.after(lasted);
      if (!plan.options.node.remote) {
        err.line("", restart_line(*outcome.cause, restarts + 1, most, delay, err.colour()));
      }
      outcome.end_signal = console.pause(delay);
      if (!outcome.end_signal) continue;
    }
    console.nodes.reset();
    for (const int signal : console.to_forward) {
      err.line("", concat("lockstep: ", signal_name(signal),
                          " was not forwarded, because no rank was left"));
    }
    if (!plan.options.node.remote) conclude(outcome, restarts, most, err);
    const int code = settle(outcome, console, remote);
    // Node 0 has the result. The exit code of a launcher that ssh has started is for its output.
    const bool complete = plan.options.node.remote && outcome.cause && console.losses.empty();
    return complete ? 0 : code;
  }
}

}  // namespace lockstep::launch
