#include "record/run.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/json_depth.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "record/folder.h"
#include "record/json_text.h"
#include "record/scalar.h"

namespace lockstep::inline v0_2::record {
namespace {

using detail::concat;
using detail::plural;
using nlohmann::json;

/// These count what a step counts as well.
bool is_count(std::string_view name) { return name == "epoch" || name == "batch"; }

/// Whether the path is there and no regular file, which is remarked on. A fifo would wait for its
/// writer.
bool left_out(const std::filesystem::path& path, Run& run) {
  std::error_code none;
  const auto status = std::filesystem::status(path, none);
  if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status)) return false;
  run.remarks.push_back(concat(path.filename().string(), ": is no regular file, and left out"));
  return true;
}

/// Calls take for each line; remarks on those that it returns false for.
void read_lines(const std::filesystem::path& path, Run& run,
                const std::function<bool(const std::string&)>& take) {
  if (left_out(path, run)) return;
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  const auto cannot_read = [&] {
    return Error(concat(path.string(), ": cannot read: ", std::strerror(errno != 0 ? errno : EIO)));
  };
  if (!in.is_open() && errno != ENOENT) throw cannot_read();
  std::int64_t unreadable = 0;
  bool torn = false;
  for (std::string line; in.is_open() && std::getline(in, line);) {
    if (line.empty()) continue;
    const bool taken = take(line);
    torn = !taken && in.eof();
    if (!taken && !torn) ++unreadable;
  }
  if (in.bad()) throw cannot_read();
  const auto name = path.filename().string();
  if (unreadable > 0) {
    run.remarks.push_back(concat(name, ": ", plural(unreadable, "line"),
                                 unreadable == 1 ? " is" : " are", " no record, and left out"));
  }
  if (torn) run.remarks.push_back(concat(name, ": the last line is torn, and left out"));
}

using Numbers = std::vector<std::pair<std::string, JsonNumber>>;

std::int64_t position_of(const Numbers& line, std::int64_t number) {
  for (const char* name : {"step", "epoch"}) {
    const auto found = std::ranges::find(line, name, &Numbers::value_type::first);
    if (found != line.end() && found->second.whole) return *found->second.whole;
  }
  return number;
}

void read_metrics(const std::filesystem::path& path, Run& run) {
  std::int64_t number = 0;
  std::unordered_map<std::string, std::size_t> places;  // of the curves in run.curves
  read_lines(path, run, [&](const std::string& text) {
    const auto line = flat_numbers(text);
    if (!line) return false;
    const auto position = position_of(*line, ++number);
    auto& moment = run.moments[position];
    for (const auto& [name, value] : *line) {
      if (name == "elapsed") moment.elapsed = value.value;
      if (name == "wall_time") moment.wall_time = value.value;
      if (is_position(name) || is_count(name)) continue;
      const auto [place, added] = places.try_emplace(name, run.curves.size());
      if (added) run.curves.emplace_back(name, Curve());
      run.curves[place->second].second[position] = value.value;
    }
    return true;
  });
}

void read_intervals(const std::filesystem::path& path, Run& run) {
  read_lines(path, run, [&](const std::string& text) {
    auto interval = parse_interval(text);
    if (interval) run.intervals.push_back(std::move(*interval));
    return interval.has_value();
  });
  if (run.intervals.empty()) return;
  const auto ranks = run.intervals.back().ranks.size();
  const auto others = std::erase_if(
      run.intervals, [&](const Interval& interval) { return interval.ranks.size() != ranks; });
  if (others > 0) {
    run.remarks.push_back(concat("intervals.jsonl: ", others,
                                 others == 1 ? " interval" : " intervals",
                                 " of another number of ranks than the last are left out"));
  }
}

/// Without the headings.
std::size_t count_discarded(const std::filesystem::path& path) {
  const auto lines = detail::lines_in(regular_file(path).value_or(""));
  return static_cast<std::size_t>(std::ranges::count_if(lines, [](const std::string& line) {
    return !line.empty() && !line.starts_with("{\"discarded_from\"");
  }));
}

std::string text_of(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump(-1, ' ', false, json::error_handler_t::replace);
  std::string text;
  for (const auto& item : value) {
    const auto word = text_of(item);
    const char* quote = word.empty() || word.find(' ') != word.npos ? "'" : "";
    if (!text.empty()) text += ' ';
    text += quote + word + quote;
  }
  return text;
}

/// Each host once, and how many ranks are on it.
std::string hosts_text(const std::vector<std::string>& hosts) {
  std::unordered_map<std::string, int> counts;
  for (const auto& host : hosts) ++counts[host];
  std::string text;
  for (const auto& host : hosts) {
    const int count = std::exchange(counts[host], 0);
    if (count == 0) continue;
    if (!text.empty()) text += ", ";
    text += concat(host, " (", plural(count, "rank"), ")");
  }
  return text;
}

void add_environment(const std::string& name, const std::vector<std::string>& inner,
                     const json& value, Run& run) {
  if (name == "event_files") return;
  if (name == "hosts" && value.is_array()) {
    for (const auto& host : value) run.hosts.push_back(text_of(host));
    run.environment.emplace_back(name, hosts_text(run.hosts));
  } else if (value.is_object()) {
    for (const auto& variable : inner) {
      run.environment.emplace_back(variable, text_of(value.at(variable)));
    }
  } else {
    run.environment.emplace_back(name, text_of(value));
  }
}

void read_environment(const std::filesystem::path& path, Run& run) {
  if (left_out(path, run)) return;
  const auto text = regular_file(path);
  if (!text) return;
  // The names in their order, each with those of the object that it names.
  std::vector<std::pair<std::string, std::vector<std::string>>> names;
  const auto note_name = [&](int depth, json::parse_event_t event, const json& value) {
    if (event != json::parse_event_t::key) return true;
    if (depth == 1) names.emplace_back(value.get<std::string>(), std::vector<std::string>());
    if (depth == 2 && !names.empty()) names.back().second.push_back(value.get<std::string>());
    return true;
  };
  const auto all = detail::json_is_too_deep(*text) ? json() : json::parse(*text, note_name, false);
  if (!all.is_object()) {
    run.remarks.push_back(concat("environment.json: is no JSON object of at most ",
                                 detail::deepest_json, " levels, and left out"));
    return;
  }
  std::unordered_set<std::string> seen;
  for (const auto& [name, inner] : names) {
    if (seen.insert(name).second) add_environment(name, inner, all.at(name), run);
  }
}

}  // namespace

const Curve* Run::curve(const std::string& metric) const {
  const auto found = std::ranges::find(curves, metric, &std::pair<std::string, Curve>::first);
  return found == curves.end() ? nullptr : &found->second;
}

std::string Run::setting(const std::string& variable) const {
  const auto found =
      std::ranges::find(environment, variable, &std::pair<std::string, std::string>::first);
  return found == environment.end() ? "" : found->second;
}

bool Run::shares_memory() const { return !has_several_hosts && setting("backend") == "host"; }

Run read_run(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder)) {
    throw InvalidArgument(concat("report: ", folder.string(), ": no such folder"));
  }
  const auto metrics = folder / metrics_name;
  if (!std::filesystem::is_regular_file(metrics)) {
    const bool of_launcher = std::filesystem::exists(folder / "rank-0.out") ||
                             std::filesystem::exists(folder / "attempt-0");
    throw InvalidArgument(concat(
        "report: ", folder.string(), ": got no ", metrics_name,
        of_launcher ? " but what ranks printed, the --log-dir of lockstep run" : "",
        ", expected the folder of a program's run log: of RunLog, or --run-log of the examples"));
  }
  Run run;
  read_metrics(metrics, run);
  read_intervals(folder / intervals_name, run);
  read_environment(folder / environment_name, run);
  run.discarded = count_discarded(folder / discarded_name);
  run.name = std::filesystem::canonical(folder).filename().string();  // "." has a name, too
  run.has_several_hosts = std::ranges::any_of(
      run.hosts, [&](const std::string& host) { return host != run.hosts.front(); });
  run.has_trace = std::filesystem::is_regular_file(folder / trace_name);
  return run;
}

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

namespace {

// More than any run has, and few enough that sums over records and ranks stay in range.
constexpr double most_of_one = 1e12;  // steps, samples or seconds
constexpr double most_bytes = 1e18;

/// A number of an object.
/// Throws: std::range_error if it is not between the limits; json::exception if it is no number.
double number(const json& object, const char* name, double least, double most) {
  const double value = object.at(name);
  if (!(value >= least && value <= most)) throw std::range_error(name);
  return value;
}

}  // namespace

std::string interval_line(const Interval& interval) {
  auto ranks = nlohmann::ordered_json::array();
  for (const auto& rank : interval.ranks) {
    ranks.push_back({{"seconds", rank.seconds},
                     {"waiting", rank.waiting},
                     {"working", rank.working},
                     {"bytes", rank.bytes},
                     {"dense_bytes", rank.dense_bytes}});
    if (rank.loading > 0) ranks.back()["loading"] = rank.loading;
    if (rank.samples > 0) ranks.back()["samples"] = rank.samples;
  }
  const nlohmann::ordered_json line = {{"step", interval.step},
                                       {"steps", interval.steps},
                                       {"elapsed", interval.elapsed},
                                       {"ranks", std::move(ranks)}};
  return line.dump() + '\n';
}

std::optional<Interval> parse_interval(std::string_view text) {
  if (detail::json_is_too_deep(text)) return std::nullopt;
  try {
    const auto line = json::parse(text);
    Interval interval{
        .step = static_cast<std::int64_t>(number(line, "step", -most_of_one, most_of_one)),
        .steps = static_cast<std::int64_t>(number(line, "steps", 0, most_of_one)),
        .elapsed = line.at("elapsed")};
    for (const auto& rank : line.at("ranks")) {
      const auto seconds = [&](const char* name) {
        return number(rank, name, -most_of_one, most_of_one);
      };
      const auto bytes = [&](const char* name) {
        return static_cast<std::uint64_t>(number(rank, name, 0, most_bytes));
      };
      interval.ranks.push_back(
          {.seconds = seconds("seconds"),
           .waiting = seconds("waiting"),
           .working = seconds("working"),
           .loading = rank.contains("loading") ? seconds("loading") : 0,
           .bytes = bytes("bytes"),
           .dense_bytes = bytes("dense_bytes"),
           .samples = rank.contains("samples")
                          ? static_cast<std::int64_t>(number(rank, "samples", 0, most_of_one))
                          : 0});
    }
    if (interval.ranks.empty()) return std::nullopt;
    return interval;
  } catch (const json::exception&) {
    return std::nullopt;
  } catch (const std::range_error&) {
    return std::nullopt;
  }
}

}  // namespace lockstep::record
