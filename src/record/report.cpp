#include "record/report.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "core/plural.h"
#include "core/text.h"
#include "record/chart.h"
#include "record/folder.h"

namespace lockstep::inline v0_2::record {
namespace {

using detail::concat;
using detail::plural;
using Curves = std::vector<std::pair<std::string, Curve>>;

/// "on <host>" between two texts, for a rank where there are several hosts; else nothing.
std::string place_text(const Run& run, std::size_t rank, const char* before, const char* after) {
  if (!run.has_several_hosts || rank >= run.hosts.size()) return "";
  return concat(before, "on ", run.hosts[rank], after);
}

std::string percent(double share) { return number_text(100 * share) + " %"; }

void fact(std::ostream& out, const std::string& name, const std::string& value,
          const std::string& remark = "") {
  out << "<div><dt>" << escaped(name) << "</dt><dd>" << escaped(value);
  if (!remark.empty()) out << "<small>" << escaped(remark) << "</small>";
  out << "</dd></div>\n";
}

void last_and_best(std::ostream& out, const Run& run, const std::string& name, bool most) {
  const Curve* curve = run.curve(name);
  if (curve == nullptr || curve->empty()) return;
  const auto below = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto best =
      most ? std::ranges::max_element(*curve, below) : std::ranges::min_element(*curve, below);
  fact(out, name, number_text(curve->rbegin()->second),
       concat("best ", number_text(best->second), " at step ", best->first));
}

std::optional<double> last_value(const Run& run, const std::string& name) {
  const Curve* curve = run.curve(name);
  if (curve == nullptr || curve->empty()) return std::nullopt;
  return curve->rbegin()->second;
}

void facts(std::ostream& out, const Run& run) {
  out << "<dl class=\"facts\">\n";
  last_and_best(out, run, "train_loss", false);
  last_and_best(out, run, "test_accuracy", true);
  if (!run.intervals.empty()) {
    const auto all = totals(run.intervals);
    const auto& slowest = all.ranks[all.slowest];
    const auto steps = static_cast<double>(std::max<std::int64_t>(all.steps, 1));
    fact(out, "step", number_text(1000 * slowest.seconds / steps) + " ms",
         concat(plural(all.steps, "step"), " measured"));
    fact(out, "computing", percent(all.computing), "of the ranks' time");
    if (all.ranks.size() > 1) {
      double mean = 0;
      double bytes = 0;
      for (const auto& rank : all.ranks) {
        mean += rank.computing() / static_cast<double>(all.ranks.size());
        bytes += static_cast<double>(rank.bytes);
      }
      fact(out, "slowest rank", concat(all.slowest),
           concat(place_text(run, all.slowest, "", ", "), "computes ",
                  percent(mean > 0 ? slowest.computing() / mean - 1 : 0), " longer than the mean"));
      fact(out, "on the wire", bytes_text(bytes / static_cast<double>(all.ranks.size()) / steps),
           "a rank and step");
    }
  }
  if (const auto measured = last_value(run, "efficiency")) {
    const auto least = last_value(run, "efficiency_least");
    const auto most = last_value(run, "efficiency_most");
    fact(out, "efficiency", percent(*measured),
         concat("one rank's step alone over all ranks' step",
                least && most ? concat(", ", percent(*least), " to ", percent(*most)) : ""));
  }
  out << "</dl>\n";
}

void charts(std::ostream& out, const Run& run) {
  Curves losses;
  Curves accuracies;
  Curves others;
  for (const auto& named : run.curves) {
    const auto& name = named.first;
    if (name.ends_with("loss")) {
      losses.push_back(named);
    } else if (name.find("acc") != name.npos) {
      accuracies.push_back(named);
    } else if (named.second.size() > 1) {
      others.push_back(named);
    }
  }
  out << "<h2>Curves</h2>\n";
  if (run.curves.empty()) out << "<p>The run has recorded no values yet.</p>\n";
  out << "<div class=\"charts\">\n";
  if (!losses.empty()) out << line_chart("Loss", losses);
  if (!accuracies.empty()) out << line_chart("Accuracy", accuracies);
  for (const auto& other : others) out << line_chart(other.first, {other});
  out << "</div>\n";
}

void single_values(std::ostream& out, const Run& run) {
  detail::TextStream rows;
  for (const auto& [name, curve] : run.curves) {
    if (curve.size() != 1) continue;
    rows << "<tr><td>" << escaped(name) << "</td><td>" << number_text(curve.begin()->second)
         << "</td></tr>\n";
  }
  if (rows.str().empty()) return;
  out << "<h2>Values recorded once</h2>\n<table class=\"plain\">" << rows.str() << "</table>\n";
}

/// Time of a step in each interval: of the slowest rank, and on average over ranks.
void step_times(std::ostream& out, const Run& run) {
  if (run.intervals.size() < 2) return;
  Curves curves{{"longest", {}}, {"compute", {}}, {"communication", {}}, {"waiting", {}}};
  for (const auto& interval : run.intervals) {
    if (interval.steps < 1) continue;
    const auto milliseconds = [&](const auto& part) {
      double sum = 0;
      for (const auto& rank : interval.ranks) sum += std::invoke(part, rank);
      return 1000 * sum / static_cast<double>(interval.ranks.size()) /
             static_cast<double>(interval.steps);
    };
    double longest = 0;
    for (const auto& rank : interval.ranks) longest = std::max(longest, rank.seconds);
    curves[0].second[interval.step] = 1000 * longest / static_cast<double>(interval.steps);
    curves[1].second[interval.step] = milliseconds(&RankInterval::computing);
    curves[2].second[interval.step] = milliseconds(&RankInterval::working);
    curves[3].second[interval.step] = milliseconds(&RankInterval::waiting);
  }
  out << "<div class=\"charts\">"
      << line_chart("Milliseconds a step, interval by interval, ranks' mean", curves) << "</div>\n";
}

void ranks(std::ostream& out, const Run& run) {
  if (run.intervals.empty()) {
    out << "<p>The run has ended no interval yet.</p>\n";
    return;
  }
  const auto all = totals(run.intervals);
  const auto steps = static_cast<double>(std::max<std::int64_t>(all.steps, 1));
  double longest = 0;
  for (const auto& rank : all.ranks) longest = std::max(longest, rank.seconds);
  out << "<p class=\"legend\"><span><i class=\"compute\"></i>compute</span> <span><i "
         "class=\"communication\"></i>communication</span> <span><i class=\"waiting\"></i>waiting"
         "</span></p>\n<div class=\"scroll\"><table><tr><th>rank</th><th></th><th>compute ms</th>"
         "<th>communication ms</th><th>waiting ms</th><th>step ms</th><th>sent</th>"
         "<th>compressed</th></tr>\n";
  for (std::size_t i = 0; i < all.ranks.size(); ++i) {
    const auto& rank = all.ranks[i];
    const auto milliseconds = [&](double seconds) { return number_text(1000 * seconds / steps); };
    const bool slowest = all.ranks.size() > 1 && i == all.slowest;
    out << "<tr><td>" << i << escaped(place_text(run, i, " ", "")) << (slowest ? " (slowest)" : "")
        << "</td><td class=\"wide\">"
        << stacked_bar(rank, longest,
                       concat("rank ", i, ": compute ", milliseconds(rank.computing()),
                              " ms, communication ", milliseconds(rank.working), " ms, waiting ",
                              milliseconds(rank.waiting), " ms a step"))
        << "</td><td>" << milliseconds(rank.computing()) << "</td><td>"
        << milliseconds(rank.working) << "</td><td>" << milliseconds(rank.waiting) << "</td><td>"
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
    out << "<tr><td>" << escaped(name) << "</td><td>" << escaped(text) << "</td></tr>\n";
  }
  out << "</table>\n";
}

}  // namespace

Totals totals(const std::vector<Interval>& intervals) {
  Totals all{.ranks = std::vector<RankInterval>(intervals.front().ranks.size())};
  for (const auto& interval : intervals) {
    all.steps += interval.steps;
    for (std::size_t i = 0; i < all.ranks.size(); ++i) {
      all.ranks[i].seconds += interval.ranks[i].seconds;
      all.ranks[i].waiting += interval.ranks[i].waiting;
      all.ranks[i].working += interval.ranks[i].working;
      all.ranks[i].bytes += interval.ranks[i].bytes;
      all.ranks[i].dense_bytes += interval.ranks[i].dense_bytes;
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

std::string report_page(const Run& run, const std::string& title) {
  detail::TextStream out;
  out << "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\n<meta "
         "name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>"
      << escaped(title) << "</title>\n<style>" << report_style << "</style></head>\n<body>\n<h1>"
      << escaped(title) << "</h1>\n";
  for (const auto& [name, text] : run.environment) {
    if (name == "command") out << "<p class=\"quiet\">" << escaped(text) << "</p>\n";
  }
  facts(out, run);
  charts(out, run);
  out << "<h2>Where the time of a step went</h2>\n";
  ranks(out, run);
  step_times(out, run);
  single_values(out, run);
  environment(out, run);
  if (run.has_trace) {
    out << "<p class=\"quiet\">trace.json beside this page shows each rank's time, collective by "
           "collective: open it in Perfetto, or in chrome://tracing.</p>\n";
  }
  if (!run.remarks.empty()) out << "<h2>Remarks</h2>\n";
  for (const auto& remark : run.remarks) out << "<p>" << escaped(remark) << "</p>\n";
  out << "</body></html>\n";
  return out.str();
}

std::vector<std::string> write_report(const std::filesystem::path& folder,
                                      const std::filesystem::path& page) {
  const Run run = read_run(folder);
  const auto name = std::filesystem::canonical(folder);  // "." is called by its own name
  WholeFile file(page);
  file.out() << report_page(run, concat("Run ", name.filename().string()));
  file.commit();
  return run.remarks;
}

}  // namespace lockstep::record
