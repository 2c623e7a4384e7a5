#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/text.h"
#include "lockstep/error.h"
#include "record/folder.h"
#include "record/page/report.h"
#include "record/run.h"

namespace lockstep::inline v0_2::record {
namespace {

using detail::shortest;

/// The values of one step.
struct Row {
  Moment moment;
  std::vector<std::pair<std::size_t, double>> values;  ///< by the number of their column
};

struct Table {
  std::vector<std::string> columns;
  std::map<std::int64_t, Row> rows;
};

Table table_of(const Run& run) {
  Table table;
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

std::string cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == text.npos) return text;
  std::string quoted = "\"";
  for (const char letter : text) quoted += letter == '"' ? "\"\"" : std::string(1, letter);
  return quoted + '"';
}

void write_table(std::ostream& out, const Table& table) {
  out << "step,elapsed,wall_time";
  for (const auto& name : table.columns) out << ',' << cell(name);
  out << "\r\n";
  for (const auto& [step, row] : table.rows) {
    out << step << ',' << shortest(row.moment.elapsed) << ',';
    if (row.moment.wall_time) out << shortest(*row.moment.wall_time);
    std::size_t column = 0;
    const auto skip_to = [&](std::size_t next) {
      for (; column < next; ++column) out << ',';
    };
    for (const auto& [place, value] : row.values) {
      skip_to(place + 1);
      out << (std::isfinite(value) ? shortest(value) : "nan");
    }
    skip_to(table.columns.size());
    out << "\r\n";
  }
}

}  // namespace

void check_export_format(std::string_view format) {
  if (format == "csv") return;
  throw InvalidArgument(
      detail::concat("report: --export: got the format '", format,
                     "', expected csv. For Weights & Biases, MLflow and Prometheus see "
                     "docs/run-log.md."));
}

void write_csv(const Run& run, const std::filesystem::path& file) {
  detail::TextStream out;
  write_table(out, table_of(run));
  write_file(file, std::move(out).str());
}

}  // namespace lockstep::record
