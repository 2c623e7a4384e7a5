#include "record/totals.h"

#include <algorithm>

namespace lockstep::inline v0_2::record {

Totals totals(const std::vector<Interval>& intervals) {
  Totals all{.ranks = std::vector<RankInterval>(intervals.front().ranks.size())};
  for (const auto& interval : intervals) {
    all.steps += interval.steps;
    for (std::size_t i = 0; i < all.ranks.size(); ++i) {
      all.ranks[i].seconds += interval.ranks[i].seconds;
      all.ranks[i].waiting += interval.ranks[i].waiting;
      all.ranks[i].working += interval.ranks[i].working;
      all.ranks[i].loading += interval.ranks[i].loading;
      all.ranks[i].bytes += interval.ranks[i].bytes;
      all.ranks[i].dense_bytes += interval.ranks[i].dense_bytes;
      all.ranks[i].samples += interval.ranks[i].samples;
    }
  }
  double computing = 0;
  double seconds = 0;
  for (const auto& rank : all.ranks) {
    computing += rank.computing();
    seconds += rank.seconds;
  }
  all.computing = seconds > 0 ? computing / seconds : 0;
  all.slowest = static_cast<std::size_t>(
      std::ranges::max_element(all.ranks, {}, &RankInterval::computing) - all.ranks.begin());
  return all;
}

double Totals::step_seconds() const {
  return std::ranges::max_element(ranks, {}, &RankInterval::seconds)->seconds / step_count();
}

double Totals::samples_per_second() const {
  const double seconds = step_seconds();
  return seconds > 0 ? mean(&RankInterval::samples) * static_cast<double>(ranks.size()) / seconds
                     : 0;
}

std::vector<std::pair<std::string, Curve>> interval_curves(const std::vector<Interval>& intervals) {
  std::vector<std::pair<std::string, Curve>> curves{
      {"step_seconds", {}},          {"compute_seconds", {}}, {"loading_seconds", {}},
      {"communication_seconds", {}}, {"waiting_seconds", {}}, {"samples_per_second", {}}};
  for (const auto& interval : intervals) {
    if (interval.steps < 1) continue;
    const auto one = totals({interval});
    const double loading = one.mean(&RankInterval::loading);
    std::size_t place = 0;
    for (const double value : {one.step_seconds(), one.mean(&RankInterval::computing) - loading,
                               loading, one.mean(&RankInterval::working),
                               one.mean(&RankInterval::waiting), one.samples_per_second()}) {
      curves[place++].second[interval.step] = value;
    }
  }
  std::erase_if(curves, [](const auto& named) {
    return std::ranges::all_of(named.second, [](const auto& point) { return point.second == 0; });
  });
  return curves;
}

}  // namespace lockstep::record
