#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "record/page/page.h"
#include "record/run.h"

namespace lockstep::inline v0_2::record {

/// One HTML page about a run that needs nothing else: no other file, no script. refresh_seconds:
/// after so long a browser loads it again; 0 for never.
std::string report_page(const Run& run, const std::string& title, int refresh_seconds = 0);

/// Makes a page of the run in the folder. Returns what could not be read, or was left out.
/// Throws: InvalidArgument if it holds none, Error if the page cannot be written.
std::vector<std::string> write_report(const std::filesystem::path& folder,
                                      const std::filesystem::path& page);

/// One HTML page about two runs: a table of differences, and the curves of both in one chart.
std::string comparison_page(const Run& first, const Run& second);

/// Makes a page of the runs in two folders. Returns what could not be read, or was left out.
/// Throws: InvalidArgument if a folder holds none, Error if the page cannot be written.
std::vector<std::string> write_comparison(const std::filesystem::path& first,
                                          const std::filesystem::path& second,
                                          const std::filesystem::path& page);

/// A number of a run that stands out.
struct Advice {
  std::string finding;  ///< with the figures
  std::string remedy;
};

std::vector<Advice> advice_of(const Run& run);

/// The numbers that stand out in a comparison of two runs.
std::vector<Advice> advice_of(const Run& first, const Run& second);

/// As the template of pages takes it.
std::vector<Values> values_of(const std::vector<Advice>& advice);

/// Checks the format of `report --export`. Throws: InvalidArgument unless it is csv. For formats of
/// earlier versions it names the replacement.
void check_export_format(std::string_view format);

/// Writes the metrics of a run, and what its intervals say of steps as interval/step_seconds and so
/// on: a row a step and a column a metric. Source: RFC 4180
/// Throws: Error naming the file and the reason.
void write_csv(const Run& run, const std::filesystem::path& file);

}  // namespace lockstep::record
