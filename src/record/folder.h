#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::inline v0_2::record {

/// File names in a run's folder.
inline constexpr const char* metrics_name = "metrics.jsonl";
inline constexpr const char* intervals_name = "intervals.jsonl";
inline constexpr const char* trace_name = "trace.json";
inline constexpr const char* environment_name = "environment.json";
inline constexpr const char* report_name = "report.html";

/// The environment of a run. When it is written, this process adds the facts that it can read
/// itself.
struct RunEnvironment {
  int ranks = 1;
  std::vector<std::string> hosts = {};  ///< of each rank
  std::string backend = {};
  std::string strategy = {};
  int threads = 1;                            ///< of each rank, for LibTorch's operators
  std::vector<std::string> event_files = {};  ///< TensorBoard files of this run
};

/// Writes environment.json: the above, version, time, command line, LOCKSTEP_ variables and whether
/// the calling thread flushes denormals.
/// Throws: Error naming the file and the reason.
void write_environment(const std::filesystem::path& folder, const RunEnvironment& environment);

/// TensorBoard files that environment.json names as this run's; none where it cannot be read.
std::vector<std::string> event_files_of(const std::filesystem::path& folder);

/// The name of a new TensorBoard file: time, host and process.
std::string new_event_file_name();

/// Makes the folder. Throws: Error naming it and the reason.
void make_folder(const std::filesystem::path& folder);

}  // namespace lockstep::record
