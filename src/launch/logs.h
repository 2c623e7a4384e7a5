#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/folder_lock.h"
#include "launch/system.h"

namespace lockstep::inline v0_2::launch {

/// The output of a job that could not be written, and the causes.
class Losses {
 public:
  /// Of each place the first error counts, as errno.
  void add(const std::string& place, int error);
  /// Bytes that no reader took.
  void add_unread(const std::string& place, std::size_t bytes);

  bool empty() const { return places_.empty(); }
  /// "stdout, logs/rank-0.out: No space left on device; stderr: its reader did not take 80 bytes".
  std::string text() const;

 private:
  std::map<std::string, std::vector<std::string>> places_;  ///< by reason
};

/// The log file of one stream of a rank, or none. Output that cannot be written is lost, since a
/// full disk must not end the job. The first error is kept.
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

/// Makes the folder and keeps other jobs out of it. None when folder is empty.
/// Throws: InvalidArgument naming the folder, and the job that writes to it.
std::unique_ptr<detail::FolderLock> lock_logs(const std::filesystem::path& folder,
                                              std::string_view run_id);

/// Makes the folder and opens "rank-<rank>.<ending>" in it, empty. None when folder is empty. A
/// symbolic link is not followed: in a folder that others write to it may lead to any file.
/// Throws: InvalidArgument naming the file and why it cannot be written.
Log open_log(const std::filesystem::path& folder, int rank, std::string_view ending);

}  // namespace lockstep::launch
