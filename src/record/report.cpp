#include "record/report.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "core/plural.h"
#include "core/text.h"
#include "record/advice.h"
#include "record/chart.h"
#include "record/folder.h"
#include "record/page.h"
#include "record/palette.h"

namespace lockstep::inline v0_2::record {
namespace {

using detail::concat;
using detail::plural;

/// "on <host>" between two texts, for a rank where there are several hosts; else nothing.
std::string place_text(const Run& run, std::size_t rank, const char* before, const char* after) {
  if (!run.has_several_hosts || rank >= run.hosts.size()) return "";
  return concat(before, "on ", run.hosts[rank], after);
}

void fact(std::ostream& out, const std::string& name, const std::string& value,
          const std::string& remark = "") {
  out << "<div><dt>" << escaped(name) << "</dt><dd>" << escaped(value);
  if (!remark.empty()) out << "<small>" << escaped(remark) << "</small>";
  out << "</dd></div>\n";
}

/// The name of the curve that stands for a quantity: this one, else the first that is taken.
template <class Takes>
std::string headline(const Run& run, const std::string& name, const Takes& takes) {
  if (run.curve(name) != nullptr) return name;
  const auto found = std::ranges::find_if(
      run.curves, [&](const auto& named) { return takes(std::string_view(named.first)); });
  return found == run.curves.end() ? "" : found->first;
}

bool is_loss(std::string_view name) { return name.ends_with("loss"); }
bool is_accuracy(std::string_view name) { return name.find("acc") != name.npos; }
bool is_rate(std::string_view name) { return name.ends_with("_per_second"); }

void last_and_best(std::ostream& out, const Run& run, const std::string& name, bool most) {
  const Curve* curve = run.curve(name);
  if (curve == nullptr || curve->empty()) return;
  const auto below = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto best =
      most ? std::ranges::max_element(*curve, below) : std::ranges::min_element(*curve, below);
  fact(out, name, number_text(curve->rbegin()->second),
       concat("best ", number_text(best->second), " at step ", best->first));
}

/// Samples a second, of the intervals, else as the program records them.
void throughput(std::ostream& out, const Run& run) {
  const double rate = run.intervals.empty() ? 0 : totals(run.intervals).samples_per_second();
  if (rate > 0) {
    fact(out, "samples/s", number_text(rate), "of all ranks, in the intervals");
    return;
  }
  const auto name = headline(run, "samples_per_second", is_rate);
  if (!name.empty()) fact(out, name, number_text(run.curve(name)->rbegin()->second), "the last");
}

void ranks_facts(std::ostream& out, const Run& run) {
  const auto all = totals(run.intervals);
  fact(out, "step", number_text(1000 * all.step_seconds()) + " ms",
       concat(plural(all.steps, "step"), " measured"));
  throughput(out, run);
  fact(out, "computing", percent_text(all.computing), "of the ranks' time");
  if (all.ranks.size() < 2) return;
  const auto& slowest = all.ranks[all.slowest];
  double mean = 0;
  for (const auto& rank : all.ranks) {
    mean += rank.computing() / static_cast<double>(all.ranks.size());
  }
  fact(
      out, "slowest rank", concat(all.slowest),
      concat(place_text(run, all.slowest, "", ", "), "computes ",
             percent_text(mean > 0 ? slowest.computing() / mean - 1 : 0), " longer than the mean"));
  fact(out, "exchanged", bytes_text(all.mean(&RankInterval::bytes)),
       concat("a rank and step", run.shares_memory() ? ", through shared memory" : ""));
}

/// What `measure_efficiency()` recorded, if anything.
void measured_efficiency(std::ostream& out, const Run& run) {
  const auto last = [&run](const char* name) -> std::optional<double> {
    const Curve* curve = run.curve(name);
    if (curve == nullptr || curve->empty()) return std::nullopt;
    return curve->rbegin()->second;
  };
  const auto median = last("efficiency");
  if (!median) return;
  const auto least = last("efficiency_least");
  const auto most = last("efficiency_most");
  fact(
      out, "efficiency", percent_text(*median),
      concat("one rank's step alone over all ranks' step",
             least && most ? concat(", ", percent_text(*least), " to ", percent_text(*most)) : ""));
}

void facts(std::ostream& out, const Run& run) {
  out << "<dl class=\"facts\">\n";
  last_and_best(out, run, headline(run, "train_loss", is_loss), false);
  last_and_best(out, run, headline(run, "test_accuracy", is_accuracy), true);
  if (run.intervals.empty()) {
    throughput(out, run);
  } else {
    ranks_facts(out, run);
  }
  measured_efficiency(out, run);
  out << "</dl>\n";
}

/// Whether a chart of it would show one value only.
bool is_constant(const Curve& curve) {
  return curve.size() < 2 || std::ranges::all_of(curve, [&](const auto& point) {
           return point.second == curve.begin()->second;
         });
}

void charts(std::ostream& out, const Run& run, Palette& palette) {
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
  out << "<h2>Curves</h2>\n";
  if (run.curves.empty()) out << "<p>The run has recorded no values yet.</p>\n";
  out << "<div class=\"charts\">\n";
  if (!losses.empty()) out << line_chart("Loss", losses);
  if (!accuracies.empty()) out << line_chart("Accuracy", accuracies);
  for (const auto& other : others) out << line_chart(other.name, {other});
  out << "</div>\n";
}

void constant_values(std::ostream& out, const Run& run) {
  detail::TextStream rows;
  for (const auto& [name, curve] : run.curves) {
    const bool grouped = is_loss(name) || is_accuracy(name);
    if (!is_constant(curve) || (grouped && curve.size() > 1)) continue;
    rows << "<tr><td>" << escaped(name) << "</td><td>" << number_text(curve.begin()->second)
         << "</td></tr>\n";
  }
  if (rows.str().empty()) return;
  out << "<h2>Values that did not change</h2>\n<table class=\"plain\">" << rows.str()
      << "</table>\n";
}

/// Time of a step in each interval: of the slowest rank, and on average over ranks.
void step_times(std::ostream& out, const Run& run) {
  if (run.intervals.size() < 2) return;
  std::vector<Line> lines;
  for (const auto& [name, curve] : interval_curves(run.intervals)) {
    const auto quantity = name.substr(0, name.find("_seconds"));
    const char* colour = quantity == "step"            ? step_colour
                         : quantity == "compute"       ? compute_colour
                         : quantity == "loading"       ? loading_colour
                         : quantity == "communication" ? communication_colour
                         : quantity == "waiting"       ? waiting_colour
                                                       : nullptr;
    if (colour == nullptr) continue;
    Curve milliseconds;
    for (const auto& [step, seconds] : curve) milliseconds[step] = 1000 * seconds;
    lines.push_back({.name = quantity == "step" ? "step of the slowest rank" : quantity,
                     .curve = std::move(milliseconds),
                     .colour = colour});
  }
  if (lines.empty()) return;
  out << "<div class=\"charts\">"
      << line_chart("Milliseconds a step, interval by interval, ranks' mean", lines) << "</div>\n";
}

void ranks(std::ostream& out, const Run& run) {
  if (run.intervals.empty()) {
    out << "<p>The run has ended no interval yet.</p>\n";
    return;
  }
  const auto all = totals(run.intervals);
  const auto steps = static_cast<double>(std::max<std::int64_t>(all.steps, 1));
  const bool loads =
      std::ranges::any_of(all.ranks, [](const RankInterval& rank) { return rank.loading > 0; });
  double longest = 0;
  for (const auto& rank : all.ranks) longest = std::max(longest, rank.seconds);
  const auto key = [&](const char* name, const char* colour) {
    out << "<span><i style=\"background: " << colour << "\"></i>" << name << "</span> ";
  };
  out << "<p class=\"legend\">";
  key("compute", compute_colour);
  if (loads) key("loading data", loading_colour);
  key("communication", communication_colour);
  key("waiting", waiting_colour);
  out << "</p>\n<div class=\"scroll\"><table><tr><th>rank</th><th></th><th>compute ms</th>"
      << (loads ? "<th>loading ms</th>" : "")
      << "<th>communication ms</th><th>waiting ms</th><th>step ms</th><th>exchanged</th>"
         "<th>compressed</th></tr>\n";
  for (std::size_t i = 0; i < all.ranks.size(); ++i) {
    const auto& rank = all.ranks[i];
    const auto milliseconds = [&](double seconds) { return number_text(1000 * seconds / steps); };
    const auto computing = milliseconds(rank.computing() - rank.loading);
    const bool slowest = all.ranks.size() > 1 && i == all.slowest;
    const auto loading =
        loads ? concat("loading ", milliseconds(rank.loading), " ms, ") : std::string();
    out << "<tr><td>" << i << escaped(place_text(run, i, " ", "")) << (slowest ? " (slowest)" : "")
        << "</td><td class=\"wide\">"
        << stacked_bar(rank, longest,
                       concat("rank ", i, ": compute ", computing, " ms, ", loading,
                              "communication ", milliseconds(rank.working), " ms, waiting ",
                              milliseconds(rank.waiting), " ms a step"))
        << "</td><td>" << computing << "</td><td>";
    if (loads) out << milliseconds(rank.loading) << "</td><td>";
    out << milliseconds(rank.working) << "</td><td>" << milliseconds(rank.waiting) << "</td><td>"
        << milliseconds(rank.seconds) << "</td><td>" << bytes_text(static_cast<double>(rank.bytes))
        << "</td><td>";
    if (rank.bytes > 0 && rank.dense_bytes > rank.bytes) {
      out << number_text(static_cast<double>(rank.dense_bytes) / static_cast<double>(rank.bytes))
          << " times";
    }
    out << "</td></tr>\n";
  }
  out << "</table></div>\n";
}

void environment(std::ostream& out, const Run& run) {
  if (run.environment.empty()) return;
  out << "<h2>Environment</h2>\n<table class=\"plain\">\n";
  for (const auto& [name, text] : run.environment) {
    out << "<tr><td>" << escaped_name(name) << "</td><td>" << escaped(text) << "</td></tr>\n";
  }
  out << "</table>\n";
}

}  // namespace

std::string report_page(const Run& run, const std::string& title, int refresh_seconds) {
  detail::TextStream out;
  if (const auto command = run.setting("command"); !command.empty()) {
    out << "<p class=\"quiet\">" << escaped(command) << "</p>\n";
  }
  Palette palette;
  facts(out, run);
  out << advice_html(advice_of(run));
  charts(out, run, palette);
  out << "<h2>Where the time of a step went</h2>\n";
  ranks(out, run);
  step_times(out, run);
  constant_values(out, run);
  environment(out, run);
  if (run.has_trace) {
    out << "<p class=\"quiet\">trace.json beside this page shows each rank's time, collective by "
           "collective, in the part of the run that was traced last: open it in Perfetto, or in "
           "chrome://tracing.</p>\n";
  }
  if (run.discarded > 0) {
    out << "<p class=\"quiet\">discarded.jsonl has " << plural(run.discarded, "record")
        << " of steps that a later part of the run computed again.</p>\n";
  }
  if (!run.remarks.empty()) out << "<h2>Remarks</h2>\n";
  for (const auto& remark : run.remarks) out << "<p>" << escaped(remark) << "</p>\n";
  return html_page(title, out.str(), refresh_seconds);
}

std::vector<std::string> write_report(const std::filesystem::path& folder,
                                      const std::filesystem::path& page) {
  const Run run = read_run(folder);
  WholeFile file(page);
  file.out() << report_page(run, concat("Run ", run.name));
  file.commit();
  return run.remarks;
}

}  // namespace lockstep::record
