#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>

#include "core/environment.h"
#include "core/numeric/estimates.h"
#include "core/text.h"
#include "record/page/page.h"
#include "record/page/report.h"
#include "record/run.h"

namespace lockstep::inline v0_2::record {
namespace {

using detail::concat;
using detail::median;

// A figure beyond these stands out.
constexpr double loading_share = 0.1;     // of a step
constexpr double slower_rank = 1.15;      // its computing, over that of the other ranks
constexpr double exchange_share = 0.35;   // communication and waiting, of all ranks' time
constexpr double slower_interval = 1.3;   // the last third of the intervals, over the first
constexpr double worse_test_loss = 1.1;   // the last one, over the least
constexpr double compression = 1.5;       // bytes that a strategy saves
constexpr double memory_rate = 1e9;       // bytes a second: memory that ranks share moves more
constexpr double least_seconds = 0.0005;  // of a step; less is noise

/// A value a step of each rank but one.
template <class Value>
std::vector<double> others(const Totals& all, std::size_t rank, const Value& value) {
  std::vector<double> found;
  for (std::size_t i = 0; i < all.ranks.size(); ++i) {
    if (i != rank) found.push_back(value(all.ranks[i]));
  }
  return found;
}

std::string name_of(const Run& run, std::size_t rank) {
  const bool is_named = run.has_several_hosts && rank < run.hosts.size();
  return is_named ? concat("Rank ", rank, " on ", run.hosts[rank]) : concat("Rank ", rank);
}

void add_loading(std::vector<Advice>& found, const Run& run, const Totals& all) {
  const auto slowest = static_cast<std::size_t>(
      std::ranges::max_element(all.ranks, {}, &RankInterval::loading) - all.ranks.begin());
  const double step = all.step_seconds();
  const double longest = all.ranks[slowest].loading / all.step_count();
  if (longest < least_seconds || longest < loading_share * step) return;
  const auto loading = [&](const RankInterval& rank) { return rank.loading / all.step_count(); };
  const double usual = median(others(all, slowest, loading));
  if (all.ranks.size() > 1 && usual < longest / 2) {
    found.push_back(
        {concat(name_of(run, slowest), " waits ", milliseconds_text(longest), " of a step of ",
                milliseconds_text(step), " for its data loader; the other ranks wait ",
                milliseconds_text(usual), "."),
         "Give this rank's loader more workers, or its data a faster disk."});
    return;
  }
  found.push_back({concat("Ranks wait up to ", milliseconds_text(longest), " of a step of ",
                          milliseconds_text(step), " for their data loaders."),
                   "Raise PrefetchOptions::workers, or make a sample cheaper to read."});
}

/// Whether rank 0's host has more ranks than cores.
bool add_shared_cores(std::vector<Advice>& found, const Run& run) {
  const auto cores = detail::parse_number<int>(run.setting("cores")).value_or(0);
  if (run.hosts.empty()) return false;
  const auto ranks = std::ranges::count(run.hosts, run.hosts.front());
  if (cores < 1 || ranks <= cores) return false;
  found.push_back({concat(detail::plural(ranks, "rank"), " share ", detail::plural(cores, "core"),
                          " of ", run.hosts.front(), ", so each computes for a part of the time."),
                   concat("Start at most ", detail::plural(cores, "rank"), " there.")});
  return true;
}

/// Whether one rank holds up the others.
bool add_slow_rank(std::vector<Advice>& found, const Run& run, const Totals& all) {
  if (all.ranks.size() < 2) return false;
  const auto computing = [&](const RankInterval& rank) {
    return (rank.computing() - rank.loading) / all.step_count();
  };
  const auto slowest = static_cast<std::size_t>(std::ranges::max_element(all.ranks, {}, computing) -
                                                all.ranks.begin());
  const double longest = computing(all.ranks[slowest]);
  const double usual = median(others(all, slowest, computing));
  if (usual <= 0 || longest - usual < least_seconds || longest < slower_rank * usual) return false;
  const bool knows_loading = all.mean(&RankInterval::loading) > 0;
  found.push_back(
      {concat(name_of(run, slowest), " computes ", milliseconds_text(longest),
              " a step; the other ranks compute ", milliseconds_text(usual), " and wait for it."),
       concat("Give it as many cores as the others, or a smaller share of the samples.",
              knows_loading ? "" : " Check its data loader: reading data counts as computing.")});
  return true;
}

void add_exchange(std::vector<Advice>& found, const Totals& all) {
  if (all.ranks.size() < 2 || all.computing > 1 - exchange_share) return;
  const double exchanged = all.mean(&RankInterval::working) + all.mean(&RankInterval::waiting);
  if (exchanged < least_seconds) return;
  found.push_back(
      {concat("Communication and waiting take ", percent_text(1 - all.computing),
              " of the ranks' time: ", milliseconds_text(exchanged), " of a step of ",
              milliseconds_text(all.step_seconds()), "."),
       "Use larger batches, or sum several batches before an exchange (no_sync). Compare with one "
       "process that has all threads."});
}

void add_strategy(std::vector<Advice>& found, const Run& run, const Totals& all) {
  const auto strategy = run.setting("strategy");
  const double bytes = all.mean(&RankInterval::bytes);
  const double dense = all.mean(&RankInterval::dense_bytes);
  const double working = all.mean(&RankInterval::working);
  if (strategy.empty() || !run.shares_memory() || all.ranks.size() < 2) return;
  if (bytes <= 0 || dense < compression * bytes || working < least_seconds) return;
  if (dense / working > memory_rate) return;
  found.push_back(
      {concat("Strategy ", strategy, " works ", milliseconds_text(working), " a step to exchange ",
              bytes_text(bytes), " in place of ", bytes_text(dense), ": ",
              bytes_text(dense / working), " of gradients a second."),
       "Memory that ranks share moves more than 1 GB a second, so the strategy can cost more time "
       "than it saves. Run once with --strategy fp32, and compare: lockstep report FP32 THIS."});
}

void add_losses(std::vector<Advice>& found, const Run& run) {
  for (const auto& [name, curve] : run.curves) {
    if (!is_loss(name)) continue;
    const auto lost =
        std::ranges::find_if(curve, [](const auto& point) { return !std::isfinite(point.second); });
    if (lost == curve.end()) continue;
    found.push_back({concat(name, " is no number at step ", lost->first, "."),
                     "Lower the learning rate, clip the gradients, or look for bad samples before "
                     "this step."});
  }
  const Curve* train = run.curve("train_loss");
  const Curve* test = run.curve("test_loss");
  if (train == nullptr || test == nullptr || test->size() < 3 || train->empty()) return;
  const auto least = std::ranges::min_element(*test, {}, number_or(HUGE_VAL));
  const double last = test->rbegin()->second;
  const auto then = train->lower_bound(least->first);
  if (least->second <= 0 || !(last > worse_test_loss * least->second)) return;
  if (then == train->end() || !(train->rbegin()->second < then->second)) return;
  found.push_back({concat("test_loss ends at ", number_text(last), "; its least was ",
                          number_text(least->second), " at step ", least->first,
                          ", while train_loss still falls."),
                   "Stop the training earlier, or use a checkpoint of about that step."});
}

void add_slowing(std::vector<Advice>& found, const Run& run) {
  std::vector<double> steps;
  for (const auto& [name, curve] : interval_curves(run.intervals)) {
    if (name != "step_seconds") continue;
    for (const auto& point : curve) steps.push_back(point.second);
  }
  const auto third = static_cast<std::ptrdiff_t>(steps.size() / 3);
  if (third == 0) return;
  const double first = median({steps.begin(), steps.begin() + third});
  const double last = median({steps.end() - third, steps.end()});
  if (last - first < least_seconds || last < slower_interval * first) return;
  found.push_back(
      {concat("A step takes ", milliseconds_text(last),
              " in the last third of the intervals, and took ", milliseconds_text(first),
              " in the first."),
       "Look for another program on the machine, for heat, and for memory that grows."});
}

}  // namespace

std::vector<Advice> advice_of(const Run& run) {
  std::vector<Advice> found;
  if (!run.intervals.empty()) {
    const auto all = totals(run.intervals);
    add_loading(found, run, all);
    if (!add_shared_cores(found, run) && !add_slow_rank(found, run, all)) add_exchange(found, all);
    add_strategy(found, run, all);
    add_slowing(found, run);
  }
  add_losses(found, run);
  return found;
}

}  // namespace lockstep::record
