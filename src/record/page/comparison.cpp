#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "core/text.h"
#include "record/folder.h"
#include "record/page/chart.h"
#include "record/page/page.h"
#include "record/page/report.h"
#include "record/run.h"

namespace lockstep::inline v0_2::record {
namespace {

using detail::concat;
using List = std::vector<Values>;

/// The names of the runs on the page. They differ, also if the folders have one name.
struct RunNames {
  std::string first;
  std::string second;
};

RunNames names_of(const Run& first, const Run& second) {
  if (first.name != second.name) return {first.name, second.name};
  return {first.name + " (A)", second.name + " (B)"};
}

/// A curve or setting of both runs. Null: the run has none of this name.
template <class Value>
struct Both {
  std::string name;
  const Value* first = nullptr;
  const Value* second = nullptr;
};

/// The curves or settings of two runs, each name once, in their order. A run may have many. The
/// values must outlive the result.
template <class Value>
std::vector<Both<Value>> united(const std::vector<std::pair<std::string, Value>>& first,
                                const std::vector<std::pair<std::string, Value>>& second) {
  std::vector<Both<Value>> all;
  std::map<std::string_view, std::size_t> places;
  const auto add_run = [&](const auto& values, const Value* Both<Value>::*of_run) {
    for (const auto& [name, value] : values) {
      const auto [place, is_new] = places.try_emplace(name, all.size());
      if (is_new) all.push_back({.name = name});
      const Value*& kept = all[place->second].*of_run;
      if (kept == nullptr) kept = &value;
    }
  };
  add_run(first, &Both<Value>::first);
  add_run(second, &Both<Value>::second);
  return all;
}

/// Adds a row to the table of differences.
void add(List& rows, const std::string& name, std::optional<double> first,
         std::optional<double> second, std::string (*text)(double) = number_text) {
  Values row{{"name", name},
             {"first", first ? text(*first) : ""},
             {"second", second ? text(*second) : ""}};
  if (first && second && std::isfinite(*first) && std::isfinite(*second)) {
    const double difference = *second - *first;
    const std::string sign = difference > 0 ? "+" : difference < 0 ? "−" : "";
    row.texts["difference"] = sign + text(std::abs(difference));
    if (*first != 0) {
      row.texts["relative"] = sign + percent_text(std::abs(difference / *first));
    }
  }
  rows.push_back(std::move(row));
}

void add_times(List& differences, const Run& first, const Run& second) {
  if (first.intervals.empty() || second.intervals.empty()) return;
  const auto a = totals(first.intervals);
  const auto b = totals(second.intervals);
  const auto mean = [&](const char* name, const auto& part, std::string (*text)(double)) {
    add(differences, name, a.mean(part), b.mean(part), text);
  };
  add(differences, "ranks", static_cast<double>(a.ranks.size()),
      static_cast<double>(b.ranks.size()));
  add(differences, "step of the slowest rank", a.step_seconds(), b.step_seconds(),
      milliseconds_text);
  mean("compute, with loading", &RankInterval::computing, milliseconds_text);
  if (a.mean(&RankInterval::loading) + b.mean(&RankInterval::loading) > 0) {
    mean("loading data", &RankInterval::loading, milliseconds_text);
  }
  mean("communication", &RankInterval::working, milliseconds_text);
  mean("waiting", &RankInterval::waiting, milliseconds_text);
  add(differences, "computing", a.computing, b.computing, percent_text);
  if (a.samples_per_second() > 0 && b.samples_per_second() > 0) {
    add(differences, "samples/s", a.samples_per_second(), b.samples_per_second());
  }
  mean("exchanged, a rank and step", &RankInterval::bytes, bytes_text);
}

List differences_of(const Run& first, const Run& second) {
  List differences;
  add_times(differences, first, second);
  for (const auto& [name, a, b] : united(first.curves, second.curves)) {
    add(differences, name + ", last", last_of(a), last_of(b));
  }
  return differences;
}

List charts_of(const Run& first, const Run& second, const RunNames& names) {
  Palette palette;
  List charts;
  // Only a quantity with a chart takes a colour, as in the report of one run: they agree.
  const auto chart = [&](const std::string& name, const Curve* a, const Curve* b,
                         const std::string& fixed = "") {
    std::vector<Line> lines;
    if (a != nullptr) lines.push_back({.name = names.first, .curve = *a, .colour = ""});
    if (b != nullptr)
      lines.push_back({.name = names.second, .curve = *b, .colour = "", .second = true});
    // A line of one value in both runs says nothing.
    bool has_line = false;
    for (const auto& line : lines) {
      has_line = has_line || std::ranges::any_of(line.curve, [&](const auto& point) {
                   return point.second != lines.front().curve.begin()->second;
                 });
    }
    if (!has_line) return;
    const std::string colour = fixed.empty() ? palette.colour(name) : fixed;
    for (auto& line : lines) line.colour = colour;
    const auto axis = is_loss(name) ? Axis::logarithmic : Axis::linear;
    charts.push_back({{"chart", line_chart(name, lines, axis)}});
  };
  for (const auto& [name, a, b] : united(first.curves, second.curves)) chart(name, a, b);
  const auto of_first = interval_curves(first.intervals);
  const auto of_second = interval_curves(second.intervals);
  for (const auto& [name, a, b] : united(of_first, of_second)) {
    if (name == "step_seconds") chart("Seconds a step, of the slowest rank", a, b, "var(--step)");
    if (name == "samples_per_second") chart("samples/s", a, b);
  }
  return charts;
}

List environments_of(const Run& first, const Run& second) {
  List rows;
  for (const auto& [name, of_first, of_second] : united(first.environment, second.environment)) {
    const std::string a = of_first == nullptr ? "" : *of_first;
    const std::string b = of_second == nullptr ? "" : *of_second;
    if (a == b) continue;
    rows.push_back({{"name", name}, {"first", a}, {"second", b}});
  }
  return rows;
}

std::vector<std::string> remarks_of(const Run& first, const Run& second, const std::string& name,
                                    const std::string& name_of_second) {
  std::vector<std::string> remarks;
  for (const auto& remark : first.remarks) remarks.push_back(concat(name, ": ", remark));
  for (const auto& remark : second.remarks) remarks.push_back(concat(name_of_second, ": ", remark));
  return remarks;
}

}  // namespace

std::string comparison_page(const Run& first, const Run& second) {
  const auto names = names_of(first, second);
  auto charts = charts_of(first, second, names);
  Values page{{"title", concat("Runs ", names.first, " and ", names.second)},
              {"first_run", names.first},
              {"second_run", names.second},
              {"has_curves", charts.empty() ? "" : "yes"}};
  page.lists = {
      {"differences", differences_of(first, second)},
      {"charts", std::move(charts)},
      {"environments", environments_of(first, second)},
      {"remarks", list_of("remark", remarks_of(first, second, names.first, names.second))}};
  return filled(page_template, page);
}

std::vector<std::string> write_comparison(const std::filesystem::path& first,
                                          const std::filesystem::path& second,
                                          const std::filesystem::path& page) {
  const Run a = read_run(first);
  const Run b = read_run(second);
  write_file(page, comparison_page(a, b));
  return remarks_of(a, b, first.string(), second.string());
}

}  // namespace lockstep::record
