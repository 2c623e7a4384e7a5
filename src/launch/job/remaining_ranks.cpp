#include "launch/job/remaining_ranks.h"

#include <algorithm>

#include "core/system/process.h"
#include "core/text.h"
#include "launch/system.h"

namespace lockstep::inline v0_2::launch {
namespace {

using detail::concat;
using detail::plural;
using namespace std::chrono_literals;
using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto longest_gap = 5s;
constexpr std::size_t most_lines = 4;

}  // namespace

std::vector<std::string> RemainingRanks::update(Clock::time_point now,
                                                const std::vector<Rank>& remaining) {
  forget_gap(now);
  std::erase_if(known_, [&](const auto& known) {
    return std::ranges::none_of(remaining, [&](const Rank& rank) {
      return rank.rank == known.first && rank.why == known.second.rank.why;
    });
  });
  std::vector<std::string> lines;
  std::size_t unsaid = 0;
  for (const auto& rank : remaining) {
    const auto [found, added] = known_.try_emplace(rank.rank);
    auto& known = found->second;
    if (added) {
      known = {.rank = rank,
               .since = now,
               .reported = false,
               .processor_time = detail::read_process(rank.pid).processor_time};
    }
    if (known.reported || stall_ == 0s || now - known.since < stall_) continue;
    known.reported = true;
    if (lines.size() < most_lines) {
      lines.push_back(line(now, known));
    } else {
      ++unsaid;
    }
  }
  if (unsaid > 0) {
    lines.push_back(concat("lockstep: the same of ", plural(unsaid, "rank"), " more"));
  }
  return lines;
}

void RemainingRanks::forget_gap(Clock::time_point now) {
  const auto gap = updated_ ? now - *updated_ : Clock::duration::zero();
  updated_ = now;
  if (gap < longest_gap) return;
  for (auto& [rank, known] : known_) known.since += gap;
}

std::string RemainingRanks::line(Clock::time_point now, const Known& known) const {
  const auto& [rank, pid, why] = known.rank;
  const auto how_long = concat(duration_cast<seconds>(now - known.since).count(), " s");
  const auto who = concat("lockstep: rank ", rank, " of ", ranks_, " (pid ", pid, ") ");
  if (why == RemainReason::stopped) {
    return concat(who, "has been stopped by a signal for ", how_long,
                  ". Continue it with kill -CONT ", pid, ", or end the job with Ctrl-C.");
  }
  const auto process = detail::read_process(pid);
  const auto program = program_of(pid);
  const auto used = process.exists() ? process.processor_time - known.processor_time : 0ms;
  return concat(
      who,
      why == RemainReason::left ? concat("left the world ", how_long, " ago and has not ended")
                                : concat("has not ended ", how_long, " after all other ranks"),
      ": ", program.empty() ? "" : concat("program ", program, ", "),
      process.exists() ? state_text(process.state) : "ending", ", ",
      duration_cast<milliseconds>(used).count() / 100 / 10.0, " s of processor time since then. ",
      limit_ ? concat("It is ended after ", limit_->count(), " s (--linger).")
             : "End the job with Ctrl-C, or limit this time with --linger SECONDS.");
}

std::optional<int> RemainingRanks::overdue(Clock::time_point now) const {
  if (!limit_) return std::nullopt;
  for (const auto& [rank, known] : known_) {
    if (known.rank.why != RemainReason::stopped && now - known.since >= *limit_) return rank;
  }
  return std::nullopt;
}

}  // namespace lockstep::launch
