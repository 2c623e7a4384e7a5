#include "tune/tuning.h"

#include <algorithm>
#include <iterator>

#include "core/numeric/estimates.h"
#include "core/text.h"

namespace lockstep::inline v0_2::tune {
namespace {

using detail::concat;
using detail::plural;

Row& row_of(std::vector<Row>& rows, const Candidate& candidate, const Search& search) {
  const auto found = std::ranges::find(rows, candidate, &Row::candidate);
  if (found != rows.end()) return *found;
  const double work = search.global_batch.value_or(candidate.ranks);
  return rows.emplace_back(Row{.candidate = candidate, .work = work});
}

/// Runs the candidates in turn, so often. Another load of the host meanwhile affects all.
void run_rounds(std::vector<Row>& rows, const std::vector<Candidate>& candidates,
                const Search& search, int stage, const Run& run) {
  for (int round = 1; round <= search.rounds; ++round) {
    for (const auto& candidate : candidates) {
      auto& row = row_of(rows, candidate, search);
      if (!row.problem.empty()) continue;
      const auto trial =
          run(candidate, concat("stage ", stage, ", round ", round, " of ", search.rounds));
      row.problem = trial.problem;
      if (row.problem.empty()) row.rates.push_back(row.work / trial.step);
    }
  }
}

/// The layouts whose variants are worth measuring.
std::vector<Candidate> contenders(const std::vector<Row>& rows) {
  constexpr double hopeless = 2;
  const auto one = ranked(rows, 1, 1);
  const auto several = ranked(rows, 2);
  if (several.empty()) return {};
  const Row& best = *several.front();
  if (!one.empty() && one.front()->median() > hopeless * best.median()) return {};
  std::vector<Candidate> all{best.candidate};
  if (several.size() > 1 && equal_within_spread(*several[1], best)) {
    all.push_back(several[1]->candidate);
  }
  return all;
}

/// The layout with each setting that was faster on its own; empty if fewer than two were.
std::optional<Candidate> combination(const std::vector<Row>& rows, const Candidate& layout,
                                     const Search& search) {
  const auto base = std::ranges::find(rows, layout, &Row::candidate);
  auto together = layout;
  double bucket_rate = 0;
  for (const auto& variant : variants(layout, search)) {
    const auto row = std::ranges::find(rows, variant, &Row::candidate);
    if (row == rows.end() || !row->measured() || row->lowest() <= base->highest()) continue;
    if (variant.bind != layout.bind) together.bind = variant.bind;
    if (variant.share_memory) together.share_memory = true;
    if (variant.bucket != layout.bucket && row->median() > bucket_rate) {
      together.bucket = variant.bucket;
      bucket_rate = row->median();
    }
  }
  if (together.changes() < 2) return std::nullopt;
  return together;
}

/// Whether one row is faster than the other one, or is alone, beyond the spread.
bool beats(const Row* one, const Row* other) {
  return one != nullptr && (other == nullptr || one->lowest() > other->highest());
}

void add_forecast(std::vector<std::string>& lines, const Verdict& verdict, int cores) {
  const auto& scaling = verdict.scaling;
  const bool one_wins = verdict.one_process_wins();
  const auto add_unknown = [&](std::string_view why) {
    lines.push_back(
        concat("On how many cores that changes: the runs do not tell, because ", why, '.'));
  };
  if (!scaling.problem.empty()) return add_unknown(scaling.problem);
  const double serial_share = scaling.serial / (scaling.serial + scaling.parallel);
  lines.push_back(concat(
      "Threads do not shorten ", detail::fixed(100 * serial_share, 0), " %",
      " of the step of one process with one thread (serial code and memory bandwidth). Each rank "
      "adds ",
      detail::fixed(scaling.added * 1e3, 1),
      " ms to a step (exchange, and memory bandwidth that ranks share)."));
  if (scaling.one_rank_wins(cores) != one_wins) {
    return add_unknown("these shares do not explain the order that was measured");
  }
  std::string change = "does not change on up to 4096 cores";
  if (const auto changed = scaling.change(cores)) {
    const auto best = scaling.best_ranks(*changed);
    change = concat("changes from ", *changed, " cores on: ",
                    one_wins ? text({.ranks = best.ranks, .threads = best.threads}) + " win"
                             : "one process wins");
  }
  lines.push_back(concat("By these shares that ", change,
                         ". The forecast assumes t(R ranks, T threads) = w·(s + p/T) + c·R, and "
                         "cores and memory like those of this host."));
}

}  // namespace

std::vector<const Row*> ranked(const std::vector<Row>& rows, int least, int most) {
  std::vector<const Row*> all;
  for (const auto& row : rows) {
    const int ranks = row.candidate.ranks;
    if (row.measured() && ranks >= least && ranks <= most) all.push_back(&row);
  }
  std::ranges::stable_sort(all, std::greater<>(), &Row::median);
  return all;
}

bool equal_within_spread(const Row& one, const Row& other) {
  return !beats(&one, &other) && !beats(&other, &one);
}

std::vector<Row> measure(const std::vector<Candidate>& layouts, const Search& search,
                         const Run& run) {
  std::vector<Row> rows;
  run_rounds(rows, layouts, search, 1, run);
  const auto best = contenders(rows);
  std::vector<Candidate> second;
  for (const auto& layout : best) {
    second.push_back(layout);  // again, beside its variants
    std::ranges::copy(variants(layout, search), std::back_inserter(second));
  }
  run_rounds(rows, second, search, 2, run);
  std::vector<Candidate> third;
  for (const auto& layout : best) {
    if (const auto together = combination(rows, layout, search)) third.push_back(*together);
  }
  run_rounds(rows, third, search, 3, run);
  return rows;
}

Scaling Scaling::fit(const std::vector<StepTime>& times, bool same_global_batch) {
  Scaling scaling{.same_global_batch = same_global_batch};
  std::vector<detail::LinearEquation> of_one_rank;
  for (const auto& one : times) {
    if (one.ranks == 1) of_one_rank.push_back({1, 1.0 / one.threads, one.seconds});
  }
  const detail::LeastSquares fitted(of_one_rank);
  if (const auto both = fitted.both(); !both) {
    scaling.problem = "one process was measured with fewer than two numbers of threads";
  } else if (both->second <= 1e-9 * both->first) {
    scaling.problem = "more threads do not make one process faster on this host";
  } else {
    scaling.serial = std::max(0.0, both->first);
    scaling.parallel = both->first < 0 ? fitted.second(0) : both->second;
  }
  if (!scaling.problem.empty()) return scaling;
  double ranks = 0, extra = 0;
  for (const auto& one : times) {
    if (one.ranks == 1) continue;
    extra += one.ranks * (one.seconds - scaling.step(one.ranks, one.threads));
    ranks += static_cast<double>(one.ranks) * one.ranks;
  }
  if (ranks == 0) scaling.problem = "no run of several ranks was measured";
  scaling.added = ranks == 0 ? 0 : std::max(0.0, extra / ranks);
  return scaling;
}

double Scaling::step(int ranks, int threads) const {
  const double work = same_global_batch ? 1.0 / ranks : 1.0;
  return work * (serial + parallel / threads) + (ranks > 1 ? added * ranks : 0);
}

StepTime Scaling::best_ranks(int cores) const {
  StepTime best;
  for (int ranks = 2; ranks <= cores; ++ranks) {
    if (cores % ranks != 0) continue;
    const double seconds = step(ranks, cores / ranks) / (same_global_batch ? 1 : ranks);
    if (best.seconds == 0 || seconds < best.seconds) best = {ranks, cores / ranks, seconds};
  }
  return best;
}

std::optional<int> Scaling::change(int cores) const {
  constexpr int most = 4096;
  for (int more = 2 * cores; more <= most; more += cores) {
    if (one_rank_wins(more) != one_rank_wins(cores)) return more;
  }
  return std::nullopt;
}

bool Verdict::one_process_wins() const { return beats(one_process, several_ranks); }
bool Verdict::several_ranks_win() const { return beats(several_ranks, one_process); }

Verdict conclude(const std::vector<Row>& rows, bool same_global_batch) {
  const auto all = ranked(rows);
  const auto one = ranked(rows, 1, 1);
  const auto several = ranked(rows, 2);
  Verdict verdict{.one_process = one.empty() ? nullptr : one.front(),
                  .several_ranks = several.empty() ? nullptr : several.front()};
  std::vector<StepTime> times;
  for (const auto* row : all) {
    const auto& candidate = row->candidate;
    const bool fewer =
        verdict.best == nullptr || candidate.changes() < verdict.best->candidate.changes();
    if (fewer && equal_within_spread(*row, *all.front())) verdict.best = row;
    if (candidate.changes() > 0) continue;
    times.push_back({candidate.ranks, candidate.threads, row->step()});
  }
  verdict.scaling = Scaling::fit(times, same_global_batch);
  return verdict;
}

std::vector<std::string> lines(const Verdict& verdict, int cores) {
  const auto* winner = verdict.one_process;
  const auto* loser = verdict.several_ranks;
  if (winner == nullptr || loser == nullptr) return {};
  const auto on_cores = concat(" on these ", plural(cores, "core"), ": ");
  if (equal_within_spread(*winner, *loser)) {
    return {concat("One process and several ranks are equal within the spread", on_cores,
                   text(winner->candidate), ", and ", text(loser->candidate), ".")};
  }
  if (verdict.several_ranks_win()) std::swap(winner, loser);
  std::vector<std::string> all{
      concat(verdict.one_process_wins() ? "One process wins" : "Several ranks win", on_cores,
             text(winner->candidate), " has ", detail::fixed(winner->median() / loser->median(), 2),
             " times the rate of ", text(loser->candidate), ".")};
  add_forecast(all, verdict, cores);
  return all;
}

std::string text(const Candidate& candidate) {
  auto words = concat(plural(candidate.ranks, "rank"), " × ", plural(candidate.threads, "thread"));
  if (candidate.bind == launch::Bind::none) words += ", not bound";
  if (candidate.bucket != default_bucket)
    words += concat(", buckets of ", candidate.bucket, " MiB");
  if (candidate.share_memory) words += ", shared memory";
  return words;
}

}  // namespace lockstep::tune
