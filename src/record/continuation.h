#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::inline v0_2::record {

/// Where a run begins that continues a log.
struct Continuation {
  /// Steps that had been taken. Records of later steps are of a part that this run computes again.
  std::int64_t step = 0;
  /// A record of this very step is computed again, too, if it holds no other names than these.
  std::vector<std::string> names = {};
};

/// The result of discard_repeated().
struct Discarded {
  std::size_t records = 0;
  double elapsed = 0;       ///< largest of the records that are kept; 0 if there is none
  bool keeps_step = false;  ///< whether a record of Continuation::step is kept
};

/// Moves the records that the run computes again from a file of the log to discarded.jsonl. A line
/// of JSON before them names the file, the step and the time. A line without a step stays.
/// Throws: Error naming the file and the reason. The file is then as it was.
Discarded discard_repeated(const std::filesystem::path& folder, const char* name,
                           const Continuation& from);

}  // namespace lockstep::record
