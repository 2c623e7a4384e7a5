#include "record/page/report.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "core/text.h"
#include "record/folder.h"
#include "record/page/chart.h"
#include "record/page/page.h"

namespace lockstep::inline v0_2::record {
namespace {

using detail::concat;
using detail::plural;
using List = std::vector<Values>;

/// "on <host>" between two texts, for a rank where there are several hosts; else nothing.
std::string place_text(const Run& run, std::size_t rank, const char* before, const char* after) {
  if (!run.has_several_hosts || rank >= run.hosts.size()) return "";
  return concat(before, "on ", run.hosts[rank], after);
}

void fact(List& facts, const std::string& name, const std::string& value,
          const std::string& remark = "") {
  facts.push_back({{"name", name}, {"value", value}, {"remark", remark}});
}

/// The name of the curve that stands for a quantity: this one, else the first that is taken.
template <class Takes>
std::string headline(const Run& run, const std::string& name, const Takes& takes) {
  if (run.curve(name) != nullptr) return name;
  const auto found = std::ranges::find_if(
      run.curves, [&](const auto& named) { return takes(std::string_view(named.first)); });
  return found == run.curves.end() ? "" : found->first;
}

bool is_accuracy(std::string_view name) { return name.find("acc") != name.npos; }
bool is_rate(std::string_view name) { return name.ends_with("_per_second"); }

void last_and_best(List& facts, const Run& run, const std::string& name, bool most) {
  const Curve* curve = run.curve(name);
  if (curve == nullptr || curve->empty()) return;
  const auto best = most ? std::ranges::max_element(*curve, {}, number_or(-HUGE_VAL))
                         : std::ranges::min_element(*curve, {}, number_or(HUGE_VAL));
  fact(facts, name, number_text(curve->rbegin()->second),
       concat("best ", number_text(best->second), " at step ", best->first));
}

/// Samples a second, of the intervals, else as the program records them.
void throughput(List& facts, const Run& run) {
  const double rate = run.intervals.empty() ? 0 : totals(run.intervals).samples_per_second();
  if (rate > 0) {
    fact(facts, "samples/s", number_text(rate), "of all ranks, in the intervals");
    return;
  }
  const auto name = headline(run, "samples_per_second", is_rate);
  if (!name.empty()) fact(facts, name, number_text(run.curve(name)->rbegin()->second), "the last");
}

void ranks_facts(List& facts, const Run& run) {
  const auto all = totals(run.intervals);
  fact(facts, "step", milliseconds_text(all.step_seconds()),
       concat(plural(all.steps, "step"), " measured"));
  throughput(facts, run);
  fact(facts, "computing", percent_text(all.computing), "of the ranks' time");
  if (all.ranks.size() < 2) return;
  const auto& slowest = all.ranks[all.slowest];
  const double mean = all.mean(&RankInterval::computing) * all.step_count();
  fact(
      facts, "slowest rank", concat(all.slowest),
      concat(place_text(run, all.slowest, "", ", "), "computes ",
             percent_text(mean > 0 ? slowest.computing() / mean - 1 : 0), " longer than the mean"));
  fact(facts, "exchanged", bytes_text(all.mean(&RankInterval::bytes)),
       concat("a rank and step", run.shares_memory() ? ", through shared memory" : ""));
}

/// What `measure_efficiency()` recorded, if anything.
void measured_efficiency(List& facts, const Run& run) {
  const auto median = last_of(run.curve("efficiency"));
  if (!median) return;
  const auto least = last_of(run.curve("efficiency_least"));
  const auto most = last_of(run.curve("efficiency_most"));
  fact(
      facts, "efficiency", percent_text(*median),
      concat("one rank's step alone over all ranks' step",
             least && most ? concat(", ", percent_text(*least), " to ", percent_text(*most)) : ""));
}

List facts_of(const Run& run) {
  List facts;
  last_and_best(facts, run, headline(run, "train_loss", is_loss), false);
  last_and_best(facts, run, headline(run, "test_accuracy", is_accuracy), true);
  if (run.intervals.empty()) {
    throughput(facts, run);
  } else {
    ranks_facts(facts, run);
  }
  measured_efficiency(facts, run);
  return facts;
}

/// Whether a chart of it would show one value only.
bool is_constant(const Curve& curve) {
  return curve.size() < 2 || std::ranges::all_of(curve, [&](const auto& point) {
           return point.second == curve.begin()->second;
         });
}

List charts_of(const Run& run) {
  Palette palette;
  std::vector<Line> losses;
  std::vector<Line> accuracies;
  std::vector<Line> others;
  for (const auto& [name, curve] : run.curves) {
    const bool grouped = is_loss(name) || is_accuracy(name);
    if (!grouped && is_constant(curve)) continue;
    Line line{.name = name, .curve = curve, .colour = palette.colour(name)};
    (is_loss(name) ? losses : is_accuracy(name) ? accuracies : others).push_back(std::move(line));
  }
  for (auto& [name, curve] : interval_curves(run.intervals)) {
    if (name != "samples_per_second" || curve.size() < 2) continue;
    others.push_back({.name = "samples/s", .curve = curve, .colour = palette.colour("samples/s")});
  }
  List charts;
  const auto add = [&](const std::string& title, const std::vector<Line>& lines, Axis axis) {
    if (!lines.empty()) charts.push_back({{"chart", line_chart(title, lines, axis)}});
  };
  add("Loss", losses, Axis::logarithmic);
  add("Accuracy", accuracies, Axis::linear);
  for (const auto& other : others) add(other.name, {other}, Axis::linear);
  return charts;
}

List constants_of(const Run& run) {
  List constants;
  for (const auto& [name, curve] : run.curves) {
    const bool grouped = is_loss(name) || is_accuracy(name);
    if (!is_constant(curve) || (grouped && curve.size() > 1)) continue;
    constants.push_back({{"name", name}, {"value", number_text(curve.begin()->second)}});
  }
  return constants;
}

/// Time of a step in each interval: of the slowest rank, and on average over ranks.
std::string chart_of_steps(const Run& run) {
  if (run.intervals.size() < 2) return "";
  std::vector<Line> lines;
  for (const auto& [name, curve] : interval_curves(run.intervals)) {
    if (!name.ends_with("_seconds")) continue;
    const auto quantity = name.substr(0, name.find('_'));
    Curve milliseconds;
    for (const auto& [step, seconds] : curve) milliseconds[step] = 1000 * seconds;
    lines.push_back({.name = quantity == "step" ? "step of the slowest rank" : quantity,
                     .curve = std::move(milliseconds),
                     .colour = concat("var(--", quantity, ")")});
  }
  if (lines.empty()) return "";
  return line_chart("Milliseconds a step, interval by interval, ranks' mean", lines);
}

void add_times(Values& page, const Run& run) {
  page.texts["has_times"] = "yes";
  page.texts[run.intervals.empty() ? "no_intervals" : "measured"] = "yes";
  if (run.intervals.empty()) return;
  const auto all = totals(run.intervals);
  const bool loads = all.mean(&RankInterval::loading) > 0;
  double longest = 0;
  for (const auto& rank : all.ranks) longest = std::max(longest, rank.seconds);
  List ranks;
  for (std::size_t i = 0; i < all.ranks.size(); ++i) {
    const auto& rank = all.ranks[i];
    const auto milliseconds = [&](double seconds) {
      return number_text(1000 * seconds / all.step_count());
    };
    const auto compute = milliseconds(rank.computing() - rank.loading);
    const auto loading = milliseconds(rank.loading);
    const auto communication = milliseconds(rank.working);
    const auto waiting = milliseconds(rank.waiting);
    const auto description =
        concat("rank ", i, ": compute ", compute, " ms, ",
               loads ? concat("loading ", loading, " ms, ") : "", "communication ", communication,
               " ms, waiting ", waiting, " ms a step");
    const bool slowest = all.ranks.size() > 1 && i == all.slowest;
    const bool compressed = rank.bytes > 0 && rank.dense_bytes > rank.bytes;
    const double ratio = static_cast<double>(rank.dense_bytes) / static_cast<double>(rank.bytes);
    ranks.push_back({{"rank", concat(i, place_text(run, i, " ", ""), slowest ? " (slowest)" : "")},
                     {"bar", stacked_bar(rank, longest, description)},
                     {"compute", compute},
                     {"loading", loading},
                     {"communication", communication},
                     {"waiting", waiting},
                     {"step", milliseconds(rank.seconds)},
                     {"exchanged", bytes_text(static_cast<double>(rank.bytes))},
                     {"compressed", compressed ? number_text(ratio) + " times" : ""}});
  }
  page.texts["loads"] = loads ? "yes" : "";
  page.texts["step_chart"] = chart_of_steps(run);
  page.lists["ranks"] = std::move(ranks);
}

List advice_list_of(const Run& run) {
  List list;
  for (const auto& [finding, remedy] : advice_of(run)) {
    list.push_back({{"finding", finding}, {"remedy", remedy}});
  }
  return list;
}

List environment_of(const Run& run) {
  List environment;
  for (const auto& [name, text] : run.environment) {
    environment.push_back({{"name", name}, {"value", text}});
  }
  return environment;
}

}  // namespace

std::string report_page(const Run& run, const std::string& title, int refresh_seconds) {
  Values page{{"title", title},
              {"refresh", refresh_seconds > 0 ? concat(refresh_seconds) : ""},
              {"intro", run.setting("command")},
              {"has_curves", "yes"},
              {"no_values", run.curves.empty() ? "yes" : ""},
              {"has_trace", run.has_trace ? "yes" : ""},
              {"discarded", run.discarded > 0 ? concat(plural(run.discarded, "record")) : ""}};
  page.lists = {{"facts", facts_of(run)},
                {"advice", advice_list_of(run)},
                {"charts", charts_of(run)},
                {"constants", constants_of(run)},
                {"environment", environment_of(run)},
                {"remarks", list_of("remark", run.remarks)}};
  add_times(page, run);
  return filled(page_template, page);
}

std::vector<std::string> write_report(const std::filesystem::path& folder,
                                      const std::filesystem::path& page) {
  const Run run = read_run(folder);
  write_file(page, report_page(run, concat("Run ", run.name)));
  return run.remarks;
}

}  // namespace lockstep::record
