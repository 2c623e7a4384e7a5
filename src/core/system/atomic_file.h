#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::inline v0_2::detail {

/// Creates a folder and its missing parents, and waits until all of them are on disk.
/// Throws: CheckpointError with the folder and the system's error.
void create_folders(const std::filesystem::path& folder);

/// Writes a file that appears under its name only when it is complete and on disk. Until commit()
/// it is ".<name>.partial" in the same folder, locked. Without commit(), the destructor removes it.
/// commit() replaces an existing file, but no device, fifo or folder.
/// Throws: with the file and the cause, the error type of its use.
class AtomicFile {
 public:
  enum class Use : bool {
    checkpoint,  ///< commit() replaces the target of a symbolic link. Throws CheckpointError
    log  ///< refuses a link, which another user could have pointed to any file. Throws Error
  };

  AtomicFile(std::filesystem::path path, Use use);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// After a failure, commit() throws it and later calls have no effect.
  void write(std::span<const std::byte> bytes) noexcept;
  void write(std::string_view text) noexcept { write(std::as_bytes(std::span(text))); }
  void commit();

 private:
  std::filesystem::path target() const;
  void open_partial();
  [[noreturn]] void fail(const std::string& why) const;
  [[noreturn]] void fail(const char* action, int error) const;

  std::filesystem::path path_;  ///< the caller's path, for messages
  Use use_;
  std::filesystem::path target_;  ///< path_ with symbolic links resolved
  std::filesystem::path folder_;
  std::filesystem::path partial_;
  int fd_ = -1;
  int error_ = 0;  ///< errno of the first write that failed
};

}  // namespace lockstep::detail
