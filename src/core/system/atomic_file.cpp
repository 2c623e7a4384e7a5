#include "core/system/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include "core/system/files.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

namespace {

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.parent_path().empty() ? "." : path.parent_path();
}

/// Waits until the names in a folder are on disk, if it can be read. Returns the error number, or
/// 0.
int sync_names_in(const std::filesystem::path& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno == EACCES ? 0 : errno;
  const int error = fsync(fd) == 0 ? 0 : errno;
  close(fd);
  // Some file systems cannot sync a folder and return these errors.
  return error == EINVAL || error == ENOTSUP ? 0 : error;
}

}  // namespace

void create_folders(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> missing;
  std::error_code error;
  for (auto path = folder; !std::filesystem::exists(path, error) && path.has_relative_path();
       path = path.parent_path())
    missing.push_back(path);
  std::filesystem::create_directories(folder, error);
  if (error) throw CheckpointError(concat(folder.string(), ": cannot create: ", error.message()));
  for (const auto& created : missing) {
    if (const int failed = sync_names_in(folder_of(created)); failed != 0)
      throw CheckpointError(concat(created.string(), ": cannot sync the folder that it is in: ",
                                   std::generic_category().message(failed)));
  }
}

AtomicFile::AtomicFile(std::filesystem::path path, Use use) : path_(std::move(path)), use_(use) {
  if (path_.filename().empty()) fail("is not the name of a file");
  target_ = target();
  folder_ = folder_of(target_);
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path_, ignored);
  // rename() could replace a device.
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    fail("exists and is not a regular file; name another file");
  partial_ = folder_ / concat(".", target_.filename().string(), ".partial");
  open_partial();
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  unlink(partial_.c_str());
  close(fd_);
}

/// The target of a symbolic link, since rename() would replace the link itself.
std::filesystem::path AtomicFile::target() const {
  std::error_code error;
  if (!std::filesystem::is_symlink(std::filesystem::symlink_status(path_, error))) return path_;
  if (use_ == Use::log) fail(concat("cannot write: ", why_not_opened(path_, ELOOP)));
  std::filesystem::path target = std::filesystem::canonical(path_, error);
  if (error)
    fail(concat("is a symbolic link to ", std::filesystem::read_symlink(path_).string(),
                ", which cannot be resolved: ", error.message()));
  return target;
}

void AtomicFile::open_partial() {
  for (;;) {
    // A link of either kind would lead to another file, and a fifo would wait for its reader.
    std::error_code ignored;
    const auto left = std::filesystem::symlink_status(partial_, ignored);
    if (std::filesystem::exists(left) && (!std::filesystem::is_regular_file(left) ||
                                          std::filesystem::hard_link_count(partial_, ignored) > 1))
      unlink(partial_.c_str());
    constexpr int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    const int fd = open(partial_.c_str(), flags, 0666);
    if (fd < 0) {
      const int error = errno;
      // Another user left a file, which this one can only remove.
      if (error == EACCES && use_ == Use::log && unlink(partial_.c_str()) == 0) continue;
      fail("create", error);
    }
    // As a folder of a log, its files are not locked where the file system supports no locks.
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && (use_ == Use::checkpoint || errno == EWOULDBLOCK)) {
      const int error = errno;
      // The lock's owner removes the file; without locks nobody else does.
      if (error != EWOULDBLOCK) unlink(partial_.c_str());
      close(fd);
      if (error == EWOULDBLOCK) fail("another process is writing this file");
      fail("lock", error);
    }
    // Another process may have renamed or removed the file between open() and flock().
    if (same_file(fd, partial_)) {
      fd_ = fd;
      break;
    }
    close(fd);
  }
  if (ftruncate(fd_, 0) != 0) {
    const int error = errno;
    unlink(partial_.c_str());
    close(std::exchange(fd_, -1));
    fail("truncate", error);
  }
}

void AtomicFile::write(std::span<const std::byte> bytes) noexcept {
  while (!bytes.empty() && error_ == 0) {
    constexpr std::size_t max_bytes = std::size_t{1} << 30;
    const ssize_t count = ::write(fd_, bytes.data(), std::min(bytes.size(), max_bytes));
    if (count < 0 && errno != EINTR) error_ = errno;
    if (count > 0) bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void AtomicFile::commit() {
  if (error_ == 0 && fsync(fd_) != 0) error_ = errno;
  if (error_ != 0) fail("write", error_);
  if (rename(partial_.c_str(), target_.c_str()) != 0) fail("rename", errno);
  close(std::exchange(fd_, -1));

  if (const int error = sync_names_in(folder_); error != 0) fail("sync the folder of", error);
}

void AtomicFile::fail(const std::string& why) const {
  const auto text = concat(path_.string(), ": ", why);
  if (use_ == Use::checkpoint) throw CheckpointError(text);
  throw Error(text);
}

void AtomicFile::fail(const char* action, int error) const {
  fail(concat("cannot ", action, " the file: ", std::generic_category().message(error)));
}

}  // namespace lockstep::detail
