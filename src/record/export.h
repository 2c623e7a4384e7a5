#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "record/run.h"

namespace lockstep::inline v0_2::record {

/// Formats of other programs.
enum class ExportFormat : std::uint8_t {
  csv,         ///< a row a step and a column a metric. Source: RFC 4180
  prometheus,  ///< last values, for the textfile collector of Prometheus' node exporter
  wandb,       ///< an offline run of Weights & Biases, for `wandb sync`
  mlflow       ///< a body of MLflow's runs/log-batch a line
};

/// Throws: InvalidArgument naming the formats.
ExportFormat parse_export_format(std::string_view name);

/// Writes the metrics of a run, and what its intervals say of steps as interval/step_seconds and so
/// on. Returns what was left out.
/// Throws: InvalidArgument for a file name that the other program would not read, Error naming the
/// file and the reason.
std::vector<std::string> write_export(const Run& run, ExportFormat format,
                                      const std::filesystem::path& file);

/// The values of one step.
struct ExportRow {
  Moment moment;
  std::vector<std::pair<std::size_t, double>> values;  ///< by the number of their column
};

/// All values of a run: names of the columns, and rows by step.
struct ExportTable {
  std::vector<std::string> columns;
  std::map<std::int64_t, ExportRow> rows;
};
ExportTable export_table(const Run& run);

/// The bytes of a file for `wandb sync`. id: letters and digits.
std::string wandb_file(const Run& run, const ExportTable& table, const std::string& id);

}  // namespace lockstep::record
