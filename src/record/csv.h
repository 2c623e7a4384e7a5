#pragma once

#include <filesystem>
#include <string_view>

#include "record/run.h"

namespace lockstep::inline v0_2::record {

/// Checks the format of `report --export`. Throws: InvalidArgument unless it is csv. For formats of
/// earlier versions it names the replacement.
void check_export_format(std::string_view format);

/// Writes the metrics of a run, and what its intervals say of steps as interval/step_seconds and so
/// on: a row a step and a column a metric. Source: RFC 4180
/// Throws: Error naming the file and the reason.
void write_csv(const Run& run, const std::filesystem::path& file);

}  // namespace lockstep::record
