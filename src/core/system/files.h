#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "core/system/process.h"

namespace lockstep::inline v0_2::detail {

/// The first line of a file; empty if there is none.
std::string first_line(const std::filesystem::path& file);

/// The lines "Name: value" of a file in /proc, or with another separator, without spaces around the
/// value.
std::map<std::string, std::string> fields(const std::filesystem::path& file, char separator = ':');

/// Why ::open() of a file to write failed with this errno, for messages. O_NOFOLLOW refuses a
/// symbolic link, because another user could have pointed it to any file.
std::string why_not_opened(const std::filesystem::path& file, int error);

/// Whether both descriptors are of one file.
bool same_file(int first, int second);
/// Whether the path itself, no link, names the file of the descriptor.
bool same_file(int fd, const std::filesystem::path& path);

/// A random job name of 16 hexadecimal digits.
std::string new_run_id();
/// The name of this process's job: LOCKSTEP_RUN_ID, else a random one.
const std::string& run_id();

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
  Descriptor file_;
  int error_ = 0;  ///< errno of the first write that failed
};

/// Locks a folder against other jobs that write to it, until destruction. The lock is flock() on a
/// file in the folder, so the kernel releases it when the process ends. The file contains run id,
/// host, pid and time for the error of a second job; it is removed with the lock. Several objects
/// of one process may lock the same folder. If the file system does not support locks, the folder
/// is not locked, which is logged.
class FolderLock {
 public:
  /// Locks with different purposes do not conflict: "checkpoints" locks
  /// ".lockstep-checkpoints.lock".
  /// Throws: Error naming the other job, or the reason why the file cannot be created.
  FolderLock(const std::filesystem::path& folder, std::string_view purpose,
             std::string_view run_id = detail::run_id());
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  std::filesystem::path file_;
};

}  // namespace lockstep::detail
