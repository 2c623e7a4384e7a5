#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep::inline v0_2::detail {

/// A random name for a job, of 16 hexadecimal digits.
std::string new_run_id();
/// The name of the job that this process belongs to: LOCKSTEP_RUN_ID, else one of its own.
const std::string& run_id();

/// Keeps other jobs out of a folder that a job writes to, as long as this lives. It is flock() on a
/// file in the folder: the kernel drops it when the process ends, however it ends. The file holds
/// run id, host, pid and time for the message to a second job, and is removed with the lock.
/// Objects of one process share a folder. A file system without locks gives none, which is logged.
class FolderLock {
 public:
  /// purpose tells apart what may share a folder: "checkpoints" locks ".lockstep-checkpoints.lock".
  /// Throws: Error naming the other job, or why the file cannot be made.
  FolderLock(const std::filesystem::path& folder, std::string_view purpose,
             std::string_view run_id = detail::run_id());
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  std::filesystem::path file_;
};

}  // namespace lockstep::detail
