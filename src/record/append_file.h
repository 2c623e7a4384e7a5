#pragma once

#include <filesystem>
#include <string_view>

namespace lockstep::inline v0_2::record {

/// A file that receives records during a run. A failed write throws nothing, because training
/// matters more than its log. From then on the file ends with its last whole record, and error()
/// returns the cause.
class AppendFile {
 public:
  AppendFile() = default;  ///< no file: nothing is written
  /// An empty file, or what it holds, if kept, with an unfinished last line ended.
  /// Throws: Error naming the file and the reason.
  AppendFile(std::filesystem::path path, bool kept);
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;
  ~AppendFile();

  void add(std::string_view record) noexcept;

  const std::filesystem::path& path() const { return path_; }
  /// As errno, or 0: all records are in the file.
  int error() const { return error_; }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  int error_ = 0;
};

}  // namespace lockstep::record
