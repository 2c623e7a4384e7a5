#include <algorithm>
#include <csignal>

#include "core/process.h"
#include "core/text.h"
#include "launch/failure_report.h"
#include "launch/supervisor.h"

// Determines the rank that caused the failure of a job, and reports it.

namespace lockstep::inline v0_2::launch {
namespace {

using detail::concat;
using detail::Failure;
using namespace std::chrono_literals;

constexpr std::size_t reported_lines = 20;
/// A rank that fails later than this after the first one may have failed because of it.
constexpr auto same_moment = 100ms;

}  // namespace

std::string Supervisor::launcher_text(std::size_t rank) const {
  const auto& member = members_[rank];
  return concat("rank ", rank, " (pid ", member.process.pid(), ") ended with ",
                member.ending->text());
}

std::optional<int> Supervisor::recorded_cause() const {
  const auto failure = world_->failure();
  if (!failure || failure->rank < 0 || failure->rank >= static_cast<int>(members_.size())) {
    return std::nullopt;
  }
  const auto rank = static_cast<std::size_t>(failure->rank);
  const bool by_launcher = members_[rank].ending && failure->text == launcher_text(rank);
  return by_launcher ? std::nullopt : std::optional(failure->rank);
}

bool Supervisor::cause_is_ending() const {
  const auto recorded = recorded_cause();
  if (!recorded || members_[static_cast<std::size_t>(*recorded)].ending) return false;
  const auto kind = world_->failure()->kind;
  return kind == Failure::Kind::error || kind == Failure::Kind::left ||
         kind == Failure::Kind::crashed;
}

bool Supervisor::cause_is_dumping_core() const {
  const auto recorded = recorded_cause();
  if (!recorded) return false;
  const auto& member = members_[static_cast<std::size_t>(*recorded)];
  return !member.ending && detail::is_dumping_core(member.process.pid());
}

std::optional<int> Supervisor::first_cause() const {
  if (!first_failed_) return std::nullopt;
  std::vector<RankFacts> facts;
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    const auto& member = members_[rank];
    const bool failed = member.ending && member.ending->failed() && !member.ended_by_launcher;
    const auto error = error_of(rank);
    facts.push_back({.failed = failed || member.lingered,
                     .crashed = failed && member.ending->by_signal,
                     .late = member.end_time > failed_at_ + same_moment,
                     .raised_failure = world_->raised_failure(static_cast<int>(rank)),
                     .wrote_error = !member.err->tail().empty(),
                     .shows_error = error && !error->of_world() && !error->text.empty() &&
                                    member.err->tail().contains(error->text),
                     .error = error});
  }
  return rank_at_fault(facts, recorded_cause()).value_or(*first_failed_);
}

std::optional<int> Supervisor::pending_end_signal() const {
  if (end_signal_) return end_signal_;
  if (outputs_.out.broken() || outputs_.err.broken()) return SIGPIPE;
  return signals_.pending_end_signal();
}

std::optional<detail::ErrorRecord> Supervisor::error_of(std::size_t rank) const {
  const auto error = errors_.of(static_cast<int>(rank));
  const bool counts = error && (!error->raised || members_[rank].err->tail().contains(error->text));
  return counts ? error : std::nullopt;
}

void Supervisor::read_errors() {
  for (auto& member : members_) {
    for (int reads = 0; reads < 64 && member.err->open() && member.err->read_ready(); ++reads) {
    }
  }
}

void Supervisor::report_cause() {
  report_at_.reset();
  read_errors();  // the output of a rank decides which rank has the cause
  const auto cause = first_cause();
  if (!cause || reported_ || interrupted_by_) return;
  reported_ = true;
  outputs_.err.line("", report(describe(*cause), outputs_.err.colour()));
}

Outcome Supervisor::outcome() const {
  if (interrupted_by_) {
    return {.code = 128 + *interrupted_by_, .end_signal = end_signal_, .survivors = survivors_};
  }
  const auto cause = first_cause();
  if (!cause) return {.survivors = survivors_};
  const auto& member = members_[static_cast<std::size_t>(*cause)];
  const auto& first = members_[static_cast<std::size_t>(*first_failed_)];
  const auto& ending = member.ended_by_launcher || !member.ending ? first.ending : member.ending;
  const bool ended_late = member.lingered || !ending;
  return {.code = ended_late ? 1 : std::max(1, ending->exit_code()),
          .cause = describe(*cause),
          .reported = reported_,
          .end_signal = pending_end_signal(),
          .survivors = survivors_};
}

FirstCause Supervisor::describe(int cause) const {
  const auto& member = members_[static_cast<std::size_t>(cause)];
  FirstCause found{.rank = cause,
                   .ranks = plan_.options.ranks,
                   .pid = member.process.pid(),
                   .ending = member.ending,
                   .out_of_memory = member.out_of_memory,
                   .ended_by_launcher = member.ended_by_launcher || member.stays,
                   .forwarded = member.ending && member.ending->by_signal &&
                                forwarded_.contains(member.ending->code),
                   .stopped = member.was_stopped,
                   .joined = member.joined || world_->joined(cause),
                   .last_lines = member.err->tail().lines(reported_lines)};
  if (member.lingered) found.lingered = plan_.options.linger;
  found.lines_shown_last = member.err->shown_last(found.last_lines.size());
  const auto error = error_of(static_cast<std::size_t>(cause));
  const bool own_error = error && !error->of_world() && !error->text.empty();
  const bool recorded = recorded_cause() == cause;
  if (recorded) {
    const auto failure = world_->failure();
    found.kind = failure->kind;
    // The report names the signal already.
    const bool is_told = failure->kind == Failure::Kind::crashed && member.ending;
    if (!is_told) found.reason = failure->text;
  } else if (own_error) {
    found.kind = Failure::Kind::error;
    found.reason = error->text;
  }
  // The text of an uncaught error is hidden among other words, so the recorded reason is printed.
  const bool by_signal = !member.ending || member.ending->by_signal;
  std::string printed;
  for (const auto& line : found.last_lines) printed += line + '\n';
  found.lines_hold_reason = !(recorded && by_signal) && own_error &&
                            found.reason.ends_with(error->text) &&
                            printed.find(error->text) != std::string::npos;
  return found;
}

}  // namespace lockstep::launch
