#include "lockstep/record/run.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "lockstep/core/error.h"
#include "lockstep/core/text.h"
#include "lockstep/record/folder.h"

namespace lockstep::record {
namespace {

using detail::concat;
using nlohmann::ordered_json;

/// Where a line stands, not what came of it.
constexpr std::array<std::string_view, 6> positions{"step",  "elapsed", "epoch",
                                                    "batch", "ranks",   "steps"};

/// Calls take for each line; remarks on those that it returns false for.
void read_lines(const std::filesystem::path& path, Run& run,
                const std::function<bool(const std::string&)>& take) {
  std::ifstream in(path, std::ios::binary);
  std::int64_t unreadable = 0;
  bool torn = false;
  for (std::string line; std::getline(in, line);) {
    if (line.empty()) continue;
    const bool taken = take(line);
    torn = !taken && in.eof();
    if (!taken && !torn) ++unreadable;
  }
  const auto name = path.filename().string();
  if (unreadable > 0) {
    run.remarks.push_back(concat(name, ": ", unreadable,
                                 unreadable == 1 ? " line is" : " lines are",
                                 " no record, and left out"));
  }
  if (torn) run.remarks.push_back(concat(name, ": the last line is torn, and left out"));
}

std::int64_t position_of(const ordered_json& line, std::int64_t number) {
  for (const char* name : {"step", "epoch"}) {
    const auto found = line.find(name);
    if (found != line.end() && found->is_number()) return found->get<std::int64_t>();
  }
  return number;
}

Curve& curve_named(Run& run, const std::string& name) {
  const auto found = std::ranges::find(run.curves, name, &std::pair<std::string, Curve>::first);
  if (found != run.curves.end()) return found->second;
  return run.curves.emplace_back(name, Curve()).second;
}

void read_metrics(const std::filesystem::path& path, Run& run) {
  std::int64_t number = 0;
  read_lines(path, run, [&](const std::string& text) {
    const auto line = ordered_json::parse(text, nullptr, false);
    if (!line.is_object()) return false;
    const auto position = position_of(line, ++number);
    for (const auto& [name, value] : line.items()) {
      if (std::ranges::find(positions, name) != positions.end()) continue;
      if (!value.is_number() && !value.is_null()) continue;
      curve_named(run, name)[position] =
          value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
    }
    return true;
  });
}

void read_laps(const std::filesystem::path& path, Run& run) {
  read_lines(path, run, [&](const std::string& text) {
    auto lap = parse_lap(text);
    if (lap) run.laps.push_back(std::move(*lap));
    return lap.has_value();
  });
  if (run.laps.empty()) return;
  const auto ranks = run.laps.back().ranks.size();
  const auto others =
      std::erase_if(run.laps, [&](const Lap& lap) { return lap.ranks.size() != ranks; });
  if (others > 0) {
    run.remarks.push_back(concat("laps.jsonl: ", others, others == 1 ? " lap" : " laps",
                                 " of another number of ranks than the last are left out"));
  }
}

std::string text_of(const ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  std::string text;
  for (const auto& item : value) {
    const auto word = text_of(item);
    const char* quote = word.empty() || word.find(' ') != word.npos ? "'" : "";
    text += concat(text.empty() ? "" : " ", quote, word, quote);
  }
  return text;
}

/// Each host once, and how many ranks are on it.
std::string hosts_text(const std::vector<std::string>& hosts) {
  std::string text;
  for (auto host = hosts.begin(); host != hosts.end(); ++host) {
    if (std::find(hosts.begin(), host, *host) != host) continue;
    const auto count = std::ranges::count(hosts, *host);
    text += concat(text.empty() ? "" : ", ", *host, " (", count, count == 1 ? " rank)" : " ranks)");
  }
  return text;
}

void read_environment(const std::filesystem::path& path, Run& run) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return;
  const auto all = ordered_json::parse(in, nullptr, false);
  if (!all.is_object()) {
    run.remarks.push_back("environment.json: is no JSON object, and left out");
    return;
  }
  for (const auto& [name, value] : all.items()) {
    if (name == "event_files") continue;
    if (name == "hosts" && value.is_array()) {
      for (const auto& host : value) run.hosts.push_back(text_of(host));
      run.environment.emplace_back(name, hosts_text(run.hosts));
      continue;
    }
    if (!value.is_object()) {
      run.environment.emplace_back(name, text_of(value));
      continue;
    }
    for (const auto& [variable, text] : value.items()) {
      run.environment.emplace_back(variable, text_of(text));
    }
  }
}

}  // namespace

const Curve* Run::curve(const std::string& name) const {
  const auto found = std::ranges::find(curves, name, &std::pair<std::string, Curve>::first);
  return found == curves.end() ? nullptr : &found->second;
}

Run read_run(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder)) {
    throw InvalidArgument(concat("report: ", folder.string(), ": no such folder"));
  }
  const auto metrics = folder / metrics_name;
  if (!std::filesystem::is_regular_file(metrics)) {
    throw InvalidArgument(concat("report: ", folder.string(), ": got no ", metrics_name,
                                 ", expected the folder of a run's --log-dir"));
  }
  Run run;
  read_metrics(metrics, run);
  read_laps(folder / laps_name, run);
  read_environment(folder / environment_name, run);
  run.has_trace = std::filesystem::is_regular_file(folder / trace_name);
  return run;
}

}  // namespace lockstep::record
