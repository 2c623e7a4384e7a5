#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace lockstep::inline v0_2::detail {

/// Creates a folder and its missing parents, and waits until all of them are on disk.
/// Throws: CheckpointError with the folder and the system's error.
void create_folders(const std::filesystem::path& folder);

/// Writes a file that appears under its name only when it is complete and on disk. Until commit()
/// the file is ".<name>.partial" in the same folder; the destructor removes that if commit() was
/// not called. commit() replaces an existing file. It replaces the target of a symbolic link.
/// Throws: CheckpointError, from every function, with the file and the system's error.
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
  [[noreturn]] void fail(const char* action, int error) const;

  std::filesystem::path path_;    ///< the caller's path, for messages
  std::filesystem::path target_;  ///< path_ with symbolic links resolved
  std::filesystem::path folder_;
  std::filesystem::path partial_;
  int fd_ = -1;
};

}  // namespace lockstep::detail
