#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "core/folder_lock.h"
#include "launch/pipe.h"

namespace lockstep::inline v0_2::launch {

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
