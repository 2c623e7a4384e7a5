#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep::inline v0_2::detail {

/// A random job name of 16 hexadecimal digits.
std::string new_run_id();
/// The name of this process's job: LOCKSTEP_RUN_ID, else a random one.
const std::string& run_id();

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
