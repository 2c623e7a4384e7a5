#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace lockstep::inline v0_2::detail {

/// A file that appears under its name only when it is complete and on disk. Until commit() it lies
/// beside it as ".<name>.partial", and is removed if commit() is never reached. A file that was
/// there before stays as it was until then. A link stays a link: its target is replaced.
/// Throws: CheckpointError naming the file and what the system answered, from every function.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void commit();

 private:
  void open_partial();
  [[noreturn]] void fail(const char* doing, int error) const;

  std::filesystem::path path_;    ///< as the caller wrote it, for messages
  std::filesystem::path target_;  ///< where it leads
  std::filesystem::path folder_;
  std::filesystem::path partial_;
  int fd_ = -1;
};

}  // namespace lockstep::detail
