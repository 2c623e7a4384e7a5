#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "lockstep/launch/descriptor.h"

namespace lockstep::launch {

/// The log file of one stream of a rank, or none. What cannot be written is lost, since a full disk
/// must not end the job; the first error is remembered.
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

/// Makes the folder and opens "rank-<rank>.<ending>" in it, empty. None when folder is empty.
/// Throws: InvalidArgument naming the file and why it cannot be written.
Log open_log(const std::filesystem::path& folder, int rank, std::string_view ending);

}  // namespace lockstep::launch
