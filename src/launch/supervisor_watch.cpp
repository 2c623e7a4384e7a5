#include <algorithm>
#include <csignal>
#include <utility>

#include "core/text.h"
#include "launch/supervisor.h"
#include "lockstep/error.h"

// Checks the states of the ranks and of the guardian while a job runs.

namespace lockstep::inline v0_2::launch {
namespace {

using detail::concat;

/// Most guardians of one attempt, in case every guardian is killed at once.
constexpr int most_guardians = 8;

}  // namespace

void Supervisor::check_ranks() {
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    auto& member = members_[rank];
    if (member.ending) continue;
    if (const auto ending = member.process.ending()) {
      note_end(rank, *ending);
    } else if (phase_ < Phase::stopping) {
      member.was_stopped = member.process.stopped();
    }
  }
}

void Supervisor::check_guardian() {
  const auto ending = guardian_ ? guardian_->ending() : std::nullopt;
  if (!ending) return;
  const auto what =
      concat("lockstep: the guardian process (pid ", guardian_->pid(),
             "), which ends the ranks if the launcher is killed, ended with ", ending->text());
  guardian_.reset();
  try {
    if (guardians_++ < most_guardians) guardian_.emplace();
  } catch (const CommError& error) {
    outputs_.err.line("", error.what());
  }
  for (const auto& member : members_) {
    if (guardian_ && !member.gone) guardian_->add(member.process.pid());
  }
  outputs_.err.line(
      "", guardian_ ? concat(what, ". A new one (pid ", guardian_->pid(), ") takes its place.")
                    : concat(what, ". Ranks may outlive a killed launcher."));
}

void Supervisor::check_remaining_ranks() {
  const auto now = Clock::now();
  if (now < checked_ + between_checks) return;
  checked_ = now;
  oom_.update(now);
  if (phase_ != Phase::running) return;
  const auto running = std::ranges::count_if(members_, [](const auto& m) { return !m.ending; });
  std::vector<RemainingRanks::Rank> remaining;
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    auto& member = members_[rank];
    if (member.ending) continue;
    const auto number = static_cast<int>(rank);
    const auto pid = member.process.pid();
    if (world_->left(number)) {
      remaining.push_back({number, pid, RemainReason::left});
    } else if (running == 1 && members_.size() > 1) {
      remaining.push_back({number, pid, RemainReason::last});
    } else if (member.was_stopped && (member.was_stopped = member.process.stopped())) {
      remaining.push_back({number, pid, RemainReason::stopped});
    }
  }
  for (const auto& line : remaining_.update(now, remaining)) outputs_.err.line("", line);
  if (const auto rank = remaining_.overdue(now)) {
    members_[static_cast<std::size_t>(*rank)].lingered = true;
    fail(static_cast<std::size_t>(*rank));
  }
}

bool Supervisor::is_ready_for(int signal, std::size_t rank) const {
  const auto& process = members_[rank].process;
  return started_ && (world_->joined(static_cast<int>(rank)) || process.handles(signal));
}

void Supervisor::forward_signals() {
  while (!to_forward_.empty() && phase_ == Phase::running && !all_ended()) {
    const int signal = *to_forward_.begin();
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      // The signal would end a rank that is about to install its handler.
      if (members_[rank].ended() || is_ready_for(signal, rank)) continue;
      if (std::exchange(waits_to_forward_, true)) return;
      outputs_.err.line("", concat("lockstep: ", signal_name(signal), " is forwarded when rank ",
                                   rank, " (pid ", members_[rank].process.pid(),
                                   ") has called lockstep::init() or installed a handler"));
      return;
    }
    for (const auto& member : members_) {
      if (!member.ended()) member.process.signal_group(signal);
    }
    forwarded_.insert(signal);
    to_forward_.erase(signal);
    waits_to_forward_ = false;
  }
}

void Supervisor::note_end(std::size_t rank, const Ending& ending) {
  auto& member = members_[rank];
  member.ending = ending;
  member.end_time = Clock::now();
  member.joined = world_->joined(static_cast<int>(rank));
  const bool stopping = phase_ >= Phase::stopping;
  member.ended_by_launcher =
      stopping && ending.by_signal && (ending.code == SIGTERM || ending.code == SIGKILL);
  // A shell returns 128 + SIGKILL if its program was killed.
  if (!stopping && ending.exit_code() == 128 + SIGKILL) member.out_of_memory = oom_.text();
  if (ending.failed() && !stopping) {
    using Kind = detail::Failure::Kind;
    world_->fail({.kind = ending.by_signal ? Kind::left : Kind::error,
                  .rank = static_cast<int>(rank),
                  .text = launcher_text(rank)});
    fail(rank);
  }
  world_->mark_ended(static_cast<int>(rank), ending.text());
}

void Supervisor::fail(std::size_t rank) {
  if (first_failed_) return;
  first_failed_ = static_cast<int>(rank);
  failed_at_ = Clock::now();
  phase_ = Phase::settling;
  deadline_ = failed_at_ + settling_time;
}

}  // namespace lockstep::launch
