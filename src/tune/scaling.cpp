#include "tune/scaling.h"

#include <algorithm>
#include <set>

namespace lockstep::inline v0_2::tune {

Scaling Scaling::fit(const std::vector<StepTime>& times, bool same_global_batch) {
  Scaling scaling;
  scaling.same_global_batch = same_global_batch;
  std::set<int> threads;
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const auto& one : times) {
    if (one.ranks != 1) continue;
    const double part = 1.0 / one.threads;
    threads.insert(one.threads);
    n += 1, x += part, y += one.seconds, xx += part * part, xy += part * one.seconds;
  }
  if (threads.size() < 2) {
    scaling.problem = "one process was measured with fewer than two numbers of threads";
    return scaling;
  }
  scaling.parallel = (n * xy - x * y) / (n * xx - x * x);
  scaling.serial = (y - scaling.parallel * x) / n;
  if (scaling.parallel <= 0) {
    scaling.problem = "more threads do not make one process faster on this host";
    return scaling;
  }
  if (scaling.serial < 0) {
    scaling.serial = 0;
    scaling.parallel = xy / xx;
  }
  double ranks = 0, extra = 0;
  for (const auto& one : times) {
    if (one.ranks == 1) continue;
    const double work = same_global_batch ? 1.0 / one.ranks : 1.0;
    const double alone = work * (scaling.serial + scaling.parallel / one.threads);
    extra += one.ranks * (one.seconds - alone);
    ranks += static_cast<double>(one.ranks) * one.ranks;
  }
  if (ranks == 0) {
    scaling.problem = "no run of several ranks was measured";
    return scaling;
  }
  scaling.added = std::max(0.0, extra / ranks);
  return scaling;
}

double Scaling::rate(int ranks, int threads) const {
  const double work = same_global_batch ? 1.0 / ranks : 1.0;
  const double exchange = ranks > 1 ? added * ranks : 0;
  const double step = work * (serial + parallel / threads) + exchange;
  return (same_global_batch ? 1 : ranks) / step;
}

StepTime Scaling::best_ranks(int cores) const {
  StepTime best;
  for (int ranks = 2; ranks <= cores; ++ranks) {
    if (cores % ranks != 0) continue;
    const double seconds = 1 / rate(ranks, cores / ranks);
    if (best.seconds == 0 || seconds < best.seconds) {
      best = {.ranks = ranks, .threads = cores / ranks, .seconds = seconds};
    }
  }
  return best;
}

std::optional<int> Scaling::change(int cores) const {
  constexpr int most = 4096;
  const bool now = one_rank_wins(cores);
  for (int more = 2 * cores; more <= most; more += cores) {
    if (one_rank_wins(more) != now) return more;
  }
  return std::nullopt;
}

}  // namespace lockstep::tune
