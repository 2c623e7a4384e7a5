#include "launch/job/supervisor.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "comm/flight/flight_record.h"
#include "core/environment.h"
#include "core/system/process.h"
#include "core/system/topology.h"
#include "core/text.h"

// Note [The life of an attempt]
// run() starts the ranks and calls poll_once() until all have ended, in one of these phases. At the
// deadline of phase 2, 3 or 4, escalate() begins the next phase.
//
// 1. running: no rank has failed. When a rank fails, note_end() records that in the world, so that
//    the other ranks raise it, and fail() begins phase 2.
// 2. settling: the other ranks get time to report the failure and to end by themselves. They get
//    more time if the rank at fault is ending or writes a core dump.
// 3. stopping: the ranks were sent SIGTERM. If a signal asks the launcher to end, interrupt()
//    begins this phase with that signal instead. After a failure, report_cause() writes the cause
//    after report_delay; if the job ends earlier, launch::run() writes it.
// 4. killing: the ranks were sent SIGKILL, after the grace time or at a second signal.
// 5. given_up: SIGKILL did not end all ranks in time. The outcome names those that still run.
//
// Then end_groups() does the same as phases 3 and 4 for processes of the ranks' process groups, and
// Processes::end_others() kills other descendants.
//
// With several nodes, a failure of a rank begins phase 2 on all of them, and a signal phase 3. The
// cause is known when the ranks of all nodes have ended, so report_cause() writes nothing before.

namespace lockstep::inline v0_2::launch {
namespace {

using detail::concat;
using detail::Failure;
using namespace std::chrono_literals;

/// Time between two checks of the ranks that remain.
constexpr auto between_checks = 1000ms;
/// Time for other ranks to raise the failure, report it and end by themselves.
constexpr auto settling_time = 1000ms;
/// The longest settling time, if the rank at fault is ending by itself.
constexpr auto longest_settling_time = 2000ms;
/// Longest time for the core dump of a rank that crashed.
constexpr auto longest_core_dump = std::chrono::minutes(10);
/// Programs often save a checkpoint after Ctrl-C.
constexpr auto interrupt_grace = 5000ms;
/// The cause is reported at the end of the job, at the latest this time after ranks were sent
/// SIGTERM.
constexpr auto report_delay = 1000ms;

/// The time after which ranks report that they wait, and the launcher that a rank goes on alone.
std::chrono::duration<double> stall_time(const Plan& plan) {
  constexpr double unless_set = 30;
  const auto inherited =
      detail::parse_number<double>(value_of(plan.inherited, "LOCKSTEP_STALL_WARNING"));
  return std::chrono::duration<double>(
      plan.options.stall_warning.value_or(inherited.value_or(unless_set)));
}

/// Removes the copies of an earlier job in the log folder, except those of ranks of other nodes,
/// which may be of this job.
void remove_earlier_flight_records(const Plan& plan) {
  std::error_code none;
  std::filesystem::directory_iterator entry(plan.options.log_directory, none);
  for (; entry != std::filesystem::directory_iterator(); entry.increment(none)) {
    const auto name = entry->path().filename().string();
    if (!name.starts_with("rank-") || !(name.ends_with(".flight") || name.ends_with(".stacks")))
      continue;
    const auto rank = detail::parse_number<int>(name.substr(5, name.find('.') - 5));
    const bool elsewhere =
        rank && *rank < plan.world_size &&
        (*rank < plan.first_rank || *rank >= plan.first_rank + plan.options.ranks);
    if (!elsewhere) std::filesystem::remove(entry->path(), none);
  }
}

}  // namespace

Supervisor::Supervisor(const Plan& plan, Console& console, Descriptor rank_0_listens)
    : plan_(plan),
      console_(console),
      inheritance_(plan.options.ranks, console.signals, std::move(rank_0_listens)),
      streams_(console.outputs),
      remaining_(plan.world_size, stall_time(plan), plan.options.linger) {}

Outcome Supervisor::run() {
  auto ends = streams_.create(plan_);
  remove_earlier_flight_records(plan_);
  processes_.start(plan_, ends, inheritance_);
  ends.clear();                    // the streams end when the ranks have closed them
  inheritance_.listening.reset();  // the end of rank 0 then refuses connections
  for (const int signal : std::exchange(console_.untold, {})) tell_nodes(signal_frame(signal));
  while (!processes_.all_ended()) poll_once();
  end_groups();
  processes_.end_others();
  // A copy of what a killed rank did last. It says nothing after success.
  const bool failed = first_failure_ || end_signal_;
  detail::remove_ended_flight_records(
      plan_.run_id, failed ? plan_.options.log_directory : std::filesystem::path());
  streams_.close(console_.losses);
  auto& nodes = console_.nodes;
  if (!nodes) return outcome();
  nodes->exchange(text_of(outcome()));
  std::optional<std::vector<std::string>> texts;
  while (nodes && !(texts = nodes->texts())) poll_once();
  return texts ? agreed(outcome(), plan_.options.node.number, *texts) : outcome();
}

void Supervisor::poll_once() {
  std::vector<pollfd> awaited;
  streams_.await(awaited);
  processes_.await_start(awaited);
  auto next = checked_ + between_checks;
  if (deadline_) next = std::min(next, *deadline_);
  if (report_at_) next = std::min(next, *report_at_);
  if (console_.wait(awaited, next) < 0 && errno != EINTR) throw_system("wait for its ranks");
  processes_.check_start();
  streams_.read_ready(awaited);
  auto& [out, err] = console_.outputs;
  out.write_ready();
  err.write_ready();
  handle_signals();
  if (console_.nodes) follow_nodes();
  if (phase_ == Phase::running) processes_.forward(console_.to_forward, *inheritance_.world, err);
  if ((out.broken() || err.broken()) && phase_ < Phase::stopping) interrupt(SIGPIPE);
  if (report_at_ && Clock::now() >= *report_at_) report_cause();
  check_remaining_ranks();
  if (deadline_ && Clock::now() >= *deadline_) escalate();
}

void Supervisor::handle_signals() {
  bool children_changed = false;
  while (const auto event = console_.signals.next()) {
    const auto signal = static_cast<int>(event->ssi_signo);
    if (signal == SIGCHLD) {
      children_changed = true;
      processes_.reap_orphan(static_cast<pid_t>(event->ssi_pid));
    } else if (signal == SIGTSTP) {
      processes_.signal_all(SIGSTOP);
      raise(SIGSTOP);
      processes_.signal_all(SIGCONT);
    } else if (signal == SIGCONT) {
      processes_.signal_all(SIGCONT);
    } else if (signal == SIGWINCH) {
      streams_.copy_window_size();
    } else if (is_forwarded(signal)) {
      console_.to_forward.insert(signal);
      tell_nodes(signal_frame(signal));
    } else {
      interrupt(signal);
    }
  }
  if (!children_changed) return;
  check_ranks();
  processes_.check_guardian(console_.outputs.err);
}

void Supervisor::check_ranks() {
  for (auto& member : processes_.members()) {
    if (member.ending) continue;
    if (const auto ending = ending_of(member.process.pid())) {
      note_end(member, *ending);
    } else if (phase_ < Phase::stopping) {
      member.stopped = member.process.stopped();
    }
  }
}

void Supervisor::note_end(Member& member, const Ending& ending) {
  auto& world = *inheritance_.world;
  member.ending = ending;
  member.end_time = Clock::now();
  member.joined = world.joined(member.rank);
  member.forwarded = ending.by_signal && processes_.has_forwarded(ending.code);
  const bool stopping = phase_ >= Phase::stopping;
  member.ended_by_launcher =
      stopping && ending.by_signal && (ending.code == SIGTERM || ending.code == SIGKILL);
  // A shell returns 128 + SIGKILL if its program was killed.
  if (!stopping && ending.exit_code() == 128 + SIGKILL) member.out_of_memory = oom_.text();
  if (ending.failed() && !stopping) {
    const auto kind = ending.by_signal ? Failure::Kind::left : Failure::Kind::error;
    world.fail({.kind = kind, .rank = member.rank, .text = end_text(member)});
    fail(member.rank);
  }
  world.mark_ended(member.rank, ending.text());
}

void Supervisor::check_remaining_ranks() {
  const auto now = Clock::now();
  if (now < checked_ + between_checks) return;
  checked_ = now;
  oom_.update(now);
  if (phase_ != Phase::running) return;
  auto& members = processes_.members();
  const auto running = std::ranges::count_if(members, [](const auto& m) { return !m.ending; });
  std::vector<RemainingRanks::Rank> remaining;
  for (auto& member : members) {
    if (member.ending) continue;
    const auto pid = member.process.pid();
    if (inheritance_.world->left(member.rank)) {
      remaining.push_back({member.world_rank, pid, RemainReason::left});
    } else if (running == 1 && plan_.world_size > 1 && !console_.nodes) {
      remaining.push_back({member.world_rank, pid, RemainReason::last});
    } else if (member.stopped && (member.stopped = member.process.stopped())) {
      remaining.push_back({member.world_rank, pid, RemainReason::stopped});
    }
  }
  for (const auto& line : remaining_.update(now, remaining)) console_.outputs.err.line("", line);
  if (const auto rank = remaining_.overdue(now)) {
    const int local = *rank - plan_.first_rank;
    members[static_cast<std::size_t>(local)].lingered = plan_.options.linger;
    fail(local);
  }
}

void Supervisor::follow_nodes() {
  console_.nodes->update();
  for (const auto& frame : console_.nodes->take_received()) {
    if (const auto failure = control::failure_in(frame)) {
      inheritance_.world->fail({.kind = failure->kind, .text = failure->text}, failure->rank);
      if (phase_ < Phase::settling) fail(-1);
    } else if (const int signal = detail::parse_number<int>(frame.payload).value_or(SIGTERM);
               !is_forwarded(signal)) {
      interrupt(signal, true);
    } else if (plan_.options.forward_signals) {
      console_.to_forward.insert(signal);
    }
  }
}

void Supervisor::tell_nodes(const control::Frame& frame) {
  if (console_.nodes) console_.nodes->send(frame);
}

void Supervisor::fail(int rank) {
  // A rank of this host is more than a rank of another node, which has named it first.
  const bool known = first_failure_.has_value();
  if (known && (first_failure_->rank >= 0 || rank < 0)) return;
  first_failure_ = {.rank = rank, .time = Clock::now()};
  if (rank >= 0) {
    const auto& member = processes_.members()[static_cast<std::size_t>(rank)];
    tell_nodes(control::failure_frame(
        {.kind = Failure::Kind::left,
         .rank = member.world_rank,
         .text = concat(member.ending ? end_text(member)
                                      : concat("rank ", member.world_rank, " went on alone"),
                        " (host ", detail::host_name(), ")")}));
  }
  if (known) return;
  phase_ = Phase::settling;
  deadline_ = first_failure_->time + settling_time;
}

void Supervisor::end_settling() {
  using Kind = Failure::Kind;
  const auto now = Clock::now();
  const auto longest = first_failure_->time + longest_settling_time;
  const auto& members = processes_.members();
  const auto failure = recorded_failure(*inheritance_.world, members);
  const auto* cause = failure ? &members[static_cast<std::size_t>(failure->rank)] : nullptr;
  const bool runs = cause != nullptr && !cause->ending;
  const bool is_ending = runs && (failure->kind == Kind::error || failure->kind == Kind::left ||
                                  failure->kind == Kind::crashed);
  if (runs && detail::is_dumping_core(cause->process.pid()) &&
      now < first_failure_->time + longest_core_dump) {
    deadline_ = now + settling_time;  // SIGKILL would truncate the core dump
  } else if (is_ending && now < longest) {
    deadline_ = std::min(longest, now + settling_time);
  } else {
    stop(SIGTERM, plan_.options.grace);
  }
}

void Supervisor::interrupt(int signal, bool by_node) {
  if (by_node && signal == SIGKILL) return kill_all();
  // A batch system sends a signal to all nodes, of which each sends it to the others: the first one
  // that this node gets itself is not a second one.
  // A launcher that ssh has started ends with it. For the others it is lost.
  const bool lost = !by_node && console_.nodes && stdin_ended();
  const bool same = !by_node && end_signal_ && (std::exchange(end_signal_->by_node, false) || lost);
  const bool again =
      !same && !lost && ((end_signal_ && !first_failure_) || phase_ == Phase::stopping);
  if (lost) console_.nodes.reset();
  if (!by_node) tell_nodes(signal_frame(again ? SIGKILL : signal));
  if (!end_signal_) end_signal_ = {.number = signal, .by_node = by_node};
  if (same || (again && by_node)) return;
  if (again) {
    kill_all();
  } else if (signal == SIGPIPE) {
    stop(SIGTERM, plan_.options.grace);
  } else {
    stop(signal, std::max(plan_.options.grace, std::chrono::milliseconds(interrupt_grace)));
  }
}

void Supervisor::stop(int signal, std::chrono::milliseconds grace) {
  for (auto& member : processes_.members()) {
    member.stopped = !member.ending && member.process.stopped();
  }
  if (first_failure_ && !console_.nodes) report_at_ = Clock::now() + report_delay;
  phase_ = Phase::stopping;
  processes_.signal_all(signal);
  processes_.signal_all(SIGCONT);
  deadline_ = Clock::now() + grace;
}

void Supervisor::kill_all() {
  if (phase_ < Phase::killing) {
    phase_ = Phase::killing;
    deadline_ = Clock::now() + kill_time;
  }
  processes_.signal_all(SIGKILL);
}

void Supervisor::escalate() {
  if (phase_ == Phase::settling) {
    end_settling();
  } else if (phase_ == Phase::stopping) {
    kill_all();
  } else {
    phase_ = Phase::given_up;
    deadline_.reset();
    processes_.give_up();
  }
}

void Supervisor::end_groups() {
  if (!processes_.groups_left()) return;
  // Descendants that run after their rank has ended, in its process group.
  if (phase_ < Phase::stopping) stop(SIGTERM, plan_.options.grace);
  while (phase_ < Phase::killing && processes_.groups_left()) poll_once();
  // Processes that another process must reap send no SIGCHLD to this one.
  const auto limit = Clock::now() + kill_time;
  while (processes_.groups_left() && Clock::now() < limit) {
    deadline_ = Clock::now() + 10ms;
    poll_once();
  }
}

std::optional<FirstCause> Supervisor::first_cause() const {
  if (!first_failure_) return std::nullopt;
  return launch::first_cause(plan_, processes_.members(), inheritance_, streams_, *first_failure_);
}

void Supervisor::report_cause() {
  report_at_.reset();
  streams_.read_errors();  // the output of a rank decides which rank has the cause
  const auto cause = first_cause();
  if (!cause || reported_) return;
  reported_ = true;
  auto& err = console_.outputs.err;
  err.line("", report(*cause, err.colour()));
}

Outcome Supervisor::outcome() const {
  Outcome outcome{.cause = first_cause(),
                  .reported = reported_,
                  .end_signal = end_signal_ ? std::optional(end_signal_->number) : std::nullopt,
                  .survivors = processes_.survivors()};
  const auto& [out, err] = console_.outputs;
  if (first_failure_ && !outcome.end_signal) {
    outcome.end_signal = out.broken() || err.broken() ? std::optional(SIGPIPE)
                                                      : console_.signals.pending_end_signal();
  }
  outcome.may_restart = !outcome.end_signal && outcome.survivors.empty() &&
                        plan_.restarts < plan_.options.max_restarts;
  if (end_signal_ && end_signal_->by_node) outcome.signalled = " on another host";
  if (!outcome.cause) {
    outcome.code = end_signal_ ? 128 + end_signal_->number : 0;
    return outcome;
  }
  const auto& members = processes_.members();
  const auto& member = members[static_cast<std::size_t>(outcome.cause->rank)];
  const auto& first = members[static_cast<std::size_t>(std::max(first_failure_->rank, 0))];
  const auto& ending = member.ended_by_launcher || !member.ending ? first.ending : member.ending;
  outcome.code = member.lingered || !ending ? 1 : std::max(1, ending->exit_code());
  return outcome;
}

}  // namespace lockstep::launch
