#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/system/process.h"

namespace lockstep::inline v0_2::record {

/// A file that receives records during a run. It follows no symbolic link. A failed write throws
/// nothing, because training matters more than its log. From then on the file ends with its last
/// whole record, and error() returns the cause.
class AppendFile {
 public:
  AppendFile() = default;  ///< no file: nothing is written
  /// An empty file, or what it holds, if kept, with an unfinished last line ended.
  /// Throws: Error naming the file and the reason.
  AppendFile(std::filesystem::path path, bool kept);

  void add(std::string_view record) noexcept;

  const std::filesystem::path& path() const { return path_; }
  /// As errno, or 0: all records are in the file.
  int error() const { return error_; }

 private:
  std::filesystem::path path_;
  detail::Descriptor file_;
  int error_ = 0;
};

/// Writes or replaces a file of a log, report or trace by an AtomicFile.
/// Throws: Error naming the file and the reason.
void write_file(const std::filesystem::path& path, std::string_view text);

/// File names in a run's folder.
inline constexpr const char* metrics_name = "metrics.jsonl";
inline constexpr const char* intervals_name = "intervals.jsonl";
inline constexpr const char* discarded_name = "discarded.jsonl";
inline constexpr const char* trace_name = "trace.json";
inline constexpr const char* environment_name = "environment.json";
inline constexpr const char* report_name = "report.html";

/// The environment of a run. When it is written, this process adds the facts that it can read
/// itself.
struct RunEnvironment {
  int ranks = 1;
  std::vector<std::string> hosts = {};  ///< of each rank
  int cores = 0;                        ///< of rank 0's host, for the ranks there; 0: unknown
  std::string backend = {};
  std::string strategy = {};
  int threads = 1;                            ///< of each rank, for LibTorch's operators
  std::vector<std::string> event_files = {};  ///< TensorBoard files of this run
};

/// Writes environment.json: the above, version, time, command line, LOCKSTEP_ variables (of
/// secrets, only that they are set) and whether the calling thread flushes denormals.
/// Throws: Error naming the file and the reason.
void write_environment(const std::filesystem::path& folder, const RunEnvironment& environment);

/// TensorBoard files that environment.json names as this run's; none where it cannot be read.
std::vector<std::string> event_files_of(const std::filesystem::path& folder);

/// A name that no file in the folder has, for a new TensorBoard file: time, host and process.
std::string new_event_file_name(const std::filesystem::path& folder);

/// Makes the folder. Throws: Error naming it and the reason.
void make_folder(const std::filesystem::path& folder);

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
