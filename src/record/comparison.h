#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "record/run.h"

namespace lockstep::inline v0_2::record {

/// One HTML page about two runs: a table of differences, and the curves of both in one chart.
std::string comparison_page(const Run& first, const Run& second);

/// Makes a page of the runs in two folders. Returns what could not be read, or was left out.
/// Throws: InvalidArgument if a folder holds none, Error if the page cannot be written.
std::vector<std::string> write_comparison(const std::filesystem::path& first,
                                          const std::filesystem::path& second,
                                          const std::filesystem::path& page);

}  // namespace lockstep::record
