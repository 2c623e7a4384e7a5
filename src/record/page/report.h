#pragma once

#include <filesystem>
#include <string>
#include <vector>

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

}  // namespace lockstep::record
