#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/system/files.h"
#include "launch/system.h"

namespace lockstep::inline v0_2::launch {

/// The places of a job's output that could not be written, and the causes.
class Losses {
 public:
  /// Adds a place and its first error (errno), or another reason.
  void add(const std::string& place, int error);
  void add(const std::string& place, const std::string& reason) {
    places_[reason].push_back(place);
  }

  bool empty() const { return places_.empty(); }
  /// "stdout, logs/rank-0.out: No space left on device; stderr: its reader did not take 80 bytes".
  std::string text() const;

 private:
  std::map<std::string, std::vector<std::string>> places_;  ///< by cause
};

/// The log file of one stream of a rank, or none. Output that cannot be written is lost, because a
/// full disk must not end the job. error() is the first error.
class Log {
 public:
  Log() = default;
  Log(Descriptor file, std::filesystem::path path)
      : file_(std::move(file)), path_(std::move(path)) {}

  void write(std::string_view bytes) noexcept;

  const std::filesystem::path& path() const { return path_; }
  int error() const { return error_; }

 private:
  Descriptor file_;
  std::filesystem::path path_;
  int error_ = 0;
};

/// Creates the folder and locks it against other jobs. Null if folder is empty.
/// Throws: InvalidArgument naming the folder, and the job that writes to it.
std::unique_ptr<detail::FolderLock> lock_logs(const std::filesystem::path& folder,
                                              std::string_view run_id);

/// Creates the folder, and creates or truncates "rank-<rank>.<ending>" in it. No file if folder is
/// empty. Does not follow a symbolic link, which another user could point to any file.
/// Throws: InvalidArgument naming the file and why it cannot be written.
Log open_log(const std::filesystem::path& folder, int rank, std::string_view ending);

}  // namespace lockstep::launch
