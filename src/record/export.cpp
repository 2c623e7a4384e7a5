#include "record/export.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/folder_lock.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "record/folder.h"
#include "record/totals.h"

namespace lockstep::inline v0_2::record {
namespace {

using detail::concat;

/// The shortest text that is read as the same number.
std::string exact_text(double value) {
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

std::string json_dump(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// --- CSV -------------------------------------------------------------------------------------

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == text.npos) return text;
  std::string quoted = "\"";
  for (const char letter : text) quoted += letter == '"' ? "\"\"" : std::string(1, letter);
  return quoted + '"';
}

void write_csv(std::ostream& out, const ExportTable& table) {
  out << "step,elapsed,wall_time";
  for (const auto& name : table.columns) out << ',' << csv_cell(name);
  out << "\r\n";
  for (const auto& [step, row] : table.rows) {
    out << step << ',' << exact_text(row.moment.elapsed) << ',';
    if (row.moment.wall_time) out << exact_text(*row.moment.wall_time);
    std::size_t column = 0;
    const auto skip_to = [&](std::size_t next) {
      for (; column < next; ++column) out << ',';
    };
    for (const auto& [place, value] : row.values) {
      skip_to(place + 1);
      out << (std::isfinite(value) ? exact_text(value) : "nan");
    }
    skip_to(table.columns.size());
    out << "\r\n";
  }
}

// --- Prometheus ------------------------------------------------------------------------------

/// A label's value: valid UTF-8, or the collector would skip the file.
/// Source: Prometheus' text-based exposition format.
std::string label_text(const std::string& text) {
  std::string escaped;
  for (const char letter : nlohmann::json::parse(json_dump(text)).get<std::string>()) {
    if (letter == '\\' || letter == '"') escaped += '\\';
    escaped += letter == '\n' ? std::string("\\n") : std::string(1, letter);
  }
  return escaped;
}

void write_prometheus(std::ostream& out, const Run& run) {
  const auto number = [](double value) {
    return std::isnan(value)   ? std::string("NaN")
           : std::isinf(value) ? std::string(value > 0 ? "+Inf" : "-Inf")
                               : exact_text(value);
  };
  const auto head = [&](const char* name, const char* type, const char* help) {
    out << "# HELP " << name << ' ' << help << "\n# TYPE " << name << ' ' << type << '\n';
  };
  const auto of_run = concat("run=\"", label_text(run.name), '"');
  if (!run.curves.empty()) {
    head("lockstep_metric", "gauge", "Last value of a metric of the run.");
    for (const auto& [name, curve] : run.curves) {
      out << "lockstep_metric{" << of_run << ",metric=\"" << label_text(name) << "\"} "
          << number(curve.rbegin()->second) << '\n';
    }
  }
  if (!run.moments.empty()) {
    head("lockstep_step", "gauge", "Last step with a record.");
    out << "lockstep_step{" << of_run << "} " << run.moments.rbegin()->first << '\n';
  }
  if (run.intervals.empty()) return;
  const auto all = totals(run.intervals);
  const auto each_rank = [&](const char* name, const auto& value) {
    for (std::size_t i = 0; i < all.ranks.size(); ++i) {
      out << name << '{' << of_run << ",rank=\"" << i << "\"} " << number(value(all.ranks[i]))
          << '\n';
    }
  };
  head("lockstep_rank_seconds_total", "counter", "Time of a rank in the intervals, by activity.");
  for (std::size_t i = 0; i < all.ranks.size(); ++i) {
    const auto& rank = all.ranks[i];
    for (const auto& [activity, seconds] :
         {std::pair("compute", rank.computing() - rank.loading), std::pair("loading", rank.loading),
          std::pair("communication", rank.working), std::pair("waiting", rank.waiting)}) {
      out << "lockstep_rank_seconds_total{" << of_run << ",rank=\"" << i << "\",activity=\""
          << activity << "\"} " << number(seconds) << '\n';
    }
  }
  head("lockstep_rank_exchanged_bytes_total", "counter", "Bytes of a rank's collectives.");
  each_rank("lockstep_rank_exchanged_bytes_total",
            [](const RankInterval& rank) { return static_cast<double>(rank.bytes); });
  head("lockstep_rank_samples_total", "counter", "Samples that a rank trained on.");
  each_rank("lockstep_rank_samples_total",
            [](const RankInterval& rank) { return static_cast<double>(rank.samples); });
  head("lockstep_step_seconds", "gauge", "Mean time of a step of the slowest rank.");
  out << "lockstep_step_seconds{" << of_run << "} " << number(all.step_seconds()) << '\n';
  head("lockstep_computing_ratio", "gauge", "Share of the ranks' time that was compute.");
  out << "lockstep_computing_ratio{" << of_run << "} " << number(all.computing) << '\n';
}

// --- MLflow ----------------------------------------------------------------------------------

/// Of one request. Source: MLflow's REST API, runs/log-batch.
constexpr std::size_t most_metrics = 1000;
constexpr std::size_t most_params = 100;
constexpr std::size_t longest_key = 250;
constexpr std::size_t longest_value = 500;

/// Names that MLflow takes: letters, digits and some signs. Two names stay two.
class MlflowNames {
 public:
  std::string name(const std::string& text) {
    std::string key;
    for (const char letter : text.substr(0, longest_key - 10)) {
      const bool taken = std::isalnum(static_cast<unsigned char>(letter)) != 0 ||
                         std::string_view("_-. :/").find(letter) != std::string_view::npos;
      key += taken && static_cast<unsigned char>(letter) < 128 ? letter : '_';
    }
    const bool is_path = !key.empty() && key.front() != '/' && key.back() != '/' &&
                         key.find("//") == key.npos && key.find("..") == key.npos &&
                         key.find("./") == key.npos && key != ".";
    if (!is_path)
      std::ranges::replace_if(
          key, [](char c) { return c == '/' || c == '.'; }, '_');
    if (key.empty()) key = "_";
    auto unique = key;
    for (int number = 2; !taken_.insert(unique).second; ++number) unique = concat(key, '_', number);
    return unique;
  }

 private:
  std::set<std::string> taken_;
};

/// Returns how many values were left out: JSON has no word for what is no number.
std::size_t write_mlflow(std::ostream& out, const Run& run, const ExportTable& table) {
  using json = nlohmann::ordered_json;
  auto batch = json::array();
  const auto flush = [&](const char* kind) {
    if (batch.empty()) return;
    json body;
    body[kind] = std::exchange(batch, json::array());
    out << json_dump(body) << '\n';
  };
  MlflowNames params;
  for (const auto& [name, text] : run.environment) {
    batch.push_back({{"key", params.name(name)}, {"value", text.substr(0, longest_value)}});
    if (batch.size() == most_params) flush("params");
  }
  flush("params");
  MlflowNames metrics;
  std::vector<std::string> keys;
  for (const auto& name : table.columns) keys.push_back(metrics.name(name));
  std::size_t left_out = 0;
  for (const auto& [step, row] : table.rows) {
    const double seconds = row.moment.wall_time.value_or(row.moment.elapsed);
    const double milliseconds = std::isfinite(seconds) ? std::clamp(1000 * seconds, 0.0, 1e15) : 0;
    for (const auto& [column, value] : row.values) {
      if (!std::isfinite(value)) {
        ++left_out;
        continue;
      }
      batch.push_back({{"key", keys[column]},
                       {"value", value},
                       {"timestamp", static_cast<std::int64_t>(milliseconds)},
                       {"step", step}});
      if (batch.size() == most_metrics) flush("metrics");
    }
  }
  flush("metrics");
  return left_out;
}

void expect_extension(const std::filesystem::path& file, const char* format, const char* extension,
                      const char* reader) {
  if (file.extension() == extension) return;
  throw InvalidArgument(concat("report: --export ", format, ": got the file ", file.string(),
                               ", expected a name that ends with ", extension, ": ", reader,
                               " reads no other. Choose such a name."));
}

}  // namespace

ExportFormat parse_export_format(std::string_view name) {
  if (name == "csv") return ExportFormat::csv;
  if (name == "prometheus") return ExportFormat::prometheus;
  if (name == "wandb") return ExportFormat::wandb;
  if (name == "mlflow") return ExportFormat::mlflow;
  throw InvalidArgument(concat("report: --export: got the format '", name,
                               "', expected csv, prometheus, wandb or mlflow"));
}

ExportTable export_table(const Run& run) {
  ExportTable table;
  std::set<std::string> names;
  const auto add = [&](const std::string& name, const Curve& curve) {
    if (!names.insert(name).second) return;
    for (const auto& [step, value] : curve) {
      auto& row = table.rows[step];
      row.values.emplace_back(table.columns.size(), value);
      if (const auto moment = run.moments.find(step); moment != run.moments.end()) {
        row.moment = moment->second;
      }
    }
    table.columns.push_back(name);
  };
  for (const auto& [name, curve] : run.curves) add(name, curve);
  for (const auto& [name, curve] : interval_curves(run.intervals)) add("interval/" + name, curve);
  // A step with an interval's end only has a time, too.
  for (const auto& interval : run.intervals) {
    const auto row = table.rows.find(interval.step);
    if (row != table.rows.end() && !run.moments.contains(interval.step)) {
      row->second.moment.elapsed = interval.elapsed;
    }
  }
  return table;
}

std::vector<std::string> write_export(const Run& run, ExportFormat format,
                                      const std::filesystem::path& file) {
  if (format == ExportFormat::prometheus) {
    expect_extension(file, "prometheus", ".prom", "the textfile collector");
  }
  if (format == ExportFormat::wandb) expect_extension(file, "wandb", ".wandb", "wandb sync");
  auto remarks = run.remarks;
  WholeFile whole(file);
  switch (format) {
    case ExportFormat::csv:
      write_csv(whole.out(), export_table(run));
      break;
    case ExportFormat::prometheus:
      write_prometheus(whole.out(), run);
      break;
    case ExportFormat::wandb:
      whole.out() << wandb_file(run, export_table(run), detail::new_run_id());
      break;
    case ExportFormat::mlflow:
      if (const auto left_out = write_mlflow(whole.out(), run, export_table(run)); left_out > 0) {
        remarks.push_back(concat("--export mlflow: ", left_out,
                                 left_out == 1 ? " value is" : " values are",
                                 " no number, and left out"));
      }
  }
  whole.commit();
  return remarks;
}

}  // namespace lockstep::record
