#include "tune/tuning.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "core/median.h"
#include "core/plural.h"
#include "core/text.h"

namespace lockstep::inline v0_2::tune {
namespace {

using detail::concat;
using detail::plural;

using Run = std::function<Trial(const Candidate&, const std::string& stage)>;

Row& row_of(std::vector<Row>& rows, const Candidate& candidate) {
  const auto found = std::ranges::find(rows, candidate, &Row::candidate);
  if (found != rows.end()) return *found;
  return rows.emplace_back(Row{.candidate = candidate});
}

double rate_of(const Trial& trial, const Candidate& candidate, bool same_global_batch) {
  return (same_global_batch ? 1 : candidate.ranks) / trial.step;
}

/// Runs the candidates in turn, so often. Another load of the host meanwhile affects all.
void run_rounds(std::vector<Row>& rows, const std::vector<Candidate>& candidates,
                const Search& search, int stage, const Run& run) {
  for (int round = 1; round <= search.rounds; ++round) {
    for (const auto& candidate : candidates) {
      const bool unshareable =
          candidate.share_memory && std::ranges::any_of(rows, [](const Row& row) {
            return row.candidate.share_memory && !row.problem.empty();
          });
      auto& row = row_of(rows, candidate);
      if (!row.problem.empty()) continue;
      if (unshareable) {
        row.problem = "not possible with shared memory, see above";
        continue;
      }
      const auto trial =
          run(candidate, concat("stage ", stage, ", round ", round, " of ", search.rounds));
      if (trial.problem.empty()) {
        row.rates.push_back(rate_of(trial, candidate, search.same_global_batch));
      } else {
        row.problem = trial.problem;
      }
    }
  }
}

/// The fastest row with these ranks; null if none was measured.
const Row* fastest(const std::vector<Row>& rows, auto&& chosen) {
  const Row* best = nullptr;
  for (const auto& row : rows) {
    if (!row.measured() || !chosen(row.candidate)) continue;
    if (best == nullptr || row.median() > best->median()) best = &row;
  }
  return best;
}

bool is_one_rank(const Candidate& candidate) { return candidate.ranks == 1; }
bool has_several_ranks(const Candidate& candidate) { return candidate.ranks > 1; }

/// The layouts whose variants are worth measuring.
std::vector<Candidate> contenders(const std::vector<Row>& rows) {
  constexpr double hopeless = 2;
  const auto* best = fastest(rows, has_several_ranks);
  const auto* one = fastest(rows, is_one_rank);
  if (best == nullptr || (one != nullptr && one->median() > hopeless * best->median())) return {};
  std::vector<Candidate> all{best->candidate};
  const auto* second = fastest(rows, [&](const Candidate& candidate) {
    return candidate.ranks > 1 && !(candidate == best->candidate);
  });
  if (second != nullptr && equal_within_spread(*second, *best)) all.push_back(second->candidate);
  return all;
}

/// The layout with each setting that was faster on its own; empty if fewer than two were.
std::optional<Candidate> combination(const std::vector<Row>& rows, const Candidate& layout,
                                     const Space& space) {
  const auto base = std::ranges::find(rows, layout, &Row::candidate);
  auto together = layout;
  double bucket_rate = 0;
  for (const auto& variant : variants(layout, space)) {
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

std::string milliseconds(double seconds) { return concat(std::round(seconds * 1e4) / 10, " ms"); }

std::string layout_text(int ranks, int threads) {
  return concat(plural(ranks, "rank"), " × ", plural(threads, "thread"));
}

void add_forecast(std::vector<std::string>& lines, const Verdict& verdict, int cores) {
  const auto& scaling = verdict.scaling;
  const bool one_wins = verdict.one_process_wins();
  if (!scaling.problem.empty()) {
    lines.push_back(concat("On how many cores that changes: the runs do not tell, because ",
                           scaling.problem, "."));
    return;
  }
  lines.push_back(concat(
      "Threads do not shorten ", detail::fixed(100 * scaling.serial_share(), 0), " %",
      " of the step of one process with one thread (serial code and memory bandwidth). Each rank "
      "adds ",
      milliseconds(scaling.added),
      " to a step (exchange, and memory bandwidth that ranks share)."));
  if (scaling.one_rank_wins(cores) != one_wins) {
    lines.push_back(
        "On how many cores that changes: the runs do not tell, because these shares do not explain "
        "the order that was measured.");
    return;
  }
  const auto change = scaling.change(cores);
  if (!change) {
    lines.push_back(concat("By these shares that does not change on up to 4096 cores: ",
                           one_wins ? "one process stays faster." : "several ranks stay faster."));
  } else if (one_wins) {
    const auto best = scaling.best_ranks(*change);
    lines.push_back(concat("By these shares several ranks win from ", *change,
                           " cores on: ", layout_text(best.ranks, best.threads), " there."));
  } else {
    lines.push_back(concat("By these shares one process wins from ", *change, " cores on."));
  }
  lines.push_back(
      "The forecast assumes t(R ranks, T threads) = w·(s + p/T) + c·R, and cores and memory like "
      "those of this host.");
}

}  // namespace

double Row::median() const { return detail::median(rates); }
double Row::lowest() const { return *std::ranges::min_element(rates); }
double Row::highest() const { return *std::ranges::max_element(rates); }
double Row::step(bool same_global_batch) const {
  return (same_global_batch ? 1 : candidate.ranks) / median();
}

bool equal_within_spread(const Row& one, const Row& other) {
  return one.lowest() <= other.highest() && other.lowest() <= one.highest();
}

std::vector<Row> measure(const std::vector<Candidate>& layouts, const Search& search,
                         const Run& run) {
  std::vector<Row> rows;
  run_rounds(rows, layouts, search, 1, run);
  const auto best = contenders(rows);
  std::vector<Candidate> second;
  for (const auto& layout : best) {
    second.push_back(layout);  // again, beside its variants
    std::ranges::copy(variants(layout, search.space), std::back_inserter(second));
  }
  run_rounds(rows, second, search, 2, run);
  std::vector<Candidate> third;
  for (const auto& layout : best) {
    if (const auto together = combination(rows, layout, search.space)) third.push_back(*together);
  }
  run_rounds(rows, third, search, 3, run);
  return rows;
}

bool Verdict::one_process_wins() const {
  return one_process != nullptr &&
         (several_ranks == nullptr || one_process->lowest() > several_ranks->highest());
}

bool Verdict::several_ranks_win() const {
  return several_ranks != nullptr &&
         (one_process == nullptr || several_ranks->lowest() > one_process->highest());
}

Verdict conclude(const std::vector<Row>& rows, bool same_global_batch) {
  Verdict verdict{.one_process = fastest(rows, is_one_rank),
                  .several_ranks = fastest(rows, has_several_ranks)};
  const auto* first = fastest(rows, [](const Candidate&) { return true; });
  for (const auto& row : rows) {
    if (!row.measured() || !equal_within_spread(row, *first)) continue;
    const auto* best = verdict.best;
    const int more = best == nullptr ? 0 : row.candidate.changes() - best->candidate.changes();
    if (best == nullptr || more < 0 || (more == 0 && row.median() > best->median())) {
      verdict.best = &row;
    }
  }
  std::vector<StepTime> times;
  for (const auto& row : rows) {
    if (!row.measured() || row.candidate.changes() > 0) continue;
    times.push_back({.ranks = row.candidate.ranks,
                     .threads = row.candidate.threads,
                     .seconds = row.step(same_global_batch)});
  }
  verdict.scaling = Scaling::fit(times, same_global_batch);
  return verdict;
}

std::vector<std::string> lines(const Verdict& verdict, int cores) {
  if (verdict.one_process == nullptr || verdict.several_ranks == nullptr) return {};
  const auto& one = *verdict.one_process;
  const auto& several = *verdict.several_ranks;
  const auto ratio = [](double more, double less) {
    return concat(std::round(100 * more / less) / 100, " times");
  };
  std::vector<std::string> all;
  if (verdict.one_process_wins()) {
    all.push_back(concat("One process wins on these ", plural(cores, "core"), ": ",
                         text(one.candidate), " has ", ratio(one.median(), several.median()),
                         " the rate of ", text(several.candidate), "."));
  } else if (verdict.several_ranks_win()) {
    all.push_back(concat("Several ranks win on these ", plural(cores, "core"), ": ",
                         text(several.candidate), " has ", ratio(several.median(), one.median()),
                         " the rate of ", text(one.candidate), "."));
  } else {
    all.push_back(concat("One process and several ranks are equal within the spread on these ",
                         plural(cores, "core"), ": ", text(one.candidate), ", and ",
                         text(several.candidate), "."));
    return all;
  }
  add_forecast(all, verdict, cores);
  return all;
}

std::string text(const Candidate& candidate) {
  std::string words = layout_text(candidate.ranks, candidate.threads);
  if (candidate.bind == launch::Bind::none) words += ", not bound";
  if (candidate.bucket != default_bucket)
    words += concat(", buckets of ", candidate.bucket, " MiB");
  if (candidate.share_memory) words += ", shared memory";
  return words;
}

}  // namespace lockstep::tune
