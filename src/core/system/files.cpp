#include "core/system/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <system_error>
#include <utility>
#include <vector>

#include "core/environment.h"
#include "core/log.h"
#include "core/system/terminal.h"
#include "core/system/topology.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {
namespace {

bool are_equal(const struct stat& first, const struct stat& second) {
  return first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

}  // namespace

std::string first_line(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

std::map<std::string, std::string> fields(const std::filesystem::path& file, char separator) {
  std::map<std::string, std::string> found;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const auto name_size = line.find(separator);
    if (name_size == std::string::npos) continue;
    const auto name_end = line.find_last_not_of(" \t", name_size - 1);
    const auto value = line.find_first_not_of(" \t", name_size + 1);
    if (name_end == std::string::npos || value == std::string::npos) continue;
    found.emplace(line.substr(0, name_end + 1), line.substr(value));
  }
  return found;
}

std::string why_not_opened(const std::filesystem::path& file, int error) {
  std::error_code none;
  const auto target = std::filesystem::read_symlink(file, none);
  if (error != ELOOP || none) return std::strerror(error);
  return concat("it is a symbolic link to ", target.string(),
                ", expected a file; remove it, or name another folder");
}

bool same_file(int first, int second) {
  struct stat a {
  }, b{};
  return ::fstat(first, &a) == 0 && ::fstat(second, &b) == 0 && are_equal(a, b);
}

bool same_file(int fd, const std::filesystem::path& path) {
  struct stat opened {
  }, named{};
  return ::fstat(fd, &opened) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         are_equal(opened, named);
}

namespace {

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.parent_path().empty() ? "." : path.parent_path();
}

/// Waits until the names in a folder are on disk, if it can be read. Returns the error number, or
/// 0.
int sync_names_in(const std::filesystem::path& folder) {
  const Descriptor names(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!names) return errno == EACCES ? 0 : errno;
  const int error = fsync(names.get()) == 0 ? 0 : errno;
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
  if (file_) unlink(partial_.c_str());
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
    file_ = Descriptor(open(partial_.c_str(), flags, 0666));
    if (!file_) {
      const int error = errno;
      // Another user left a file, which this one can only remove.
      if (error == EACCES && use_ == Use::log && unlink(partial_.c_str()) == 0) continue;
      if (error != ENOENT) fail("create", error);
      fail(concat("cannot create the file: ", std::generic_category().message(error),
                  "; create the folder ", folder_.string()));
    }
    // As its folder, the file is not locked where the file system supports no locks.
    if (flock(file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      fail(concat("another process is writing this file",
                  use_ == Use::log ? ""
                                   : "; on several ranks, pass their group to save(), or save on "
                                     "one of them"));
    // Another process may have renamed or removed the file between open() and flock().
    if (same_file(file_.get(), partial_)) break;
    file_.reset();
  }
  if (ftruncate(file_.get(), 0) != 0) {
    const int error = errno;
    unlink(partial_.c_str());
    fail("truncate", error);
  }
}

void AtomicFile::write(std::span<const std::byte> bytes) noexcept {
  while (!bytes.empty() && error_ == 0) {
    constexpr std::size_t max_bytes = std::size_t{1} << 30;
    const ssize_t count = ::write(file_.get(), bytes.data(), std::min(bytes.size(), max_bytes));
    if (count < 0 && errno != EINTR) error_ = errno;
    if (count > 0) bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void AtomicFile::commit() {
  if (error_ == 0 && fsync(file_.get()) != 0) error_ = errno;
  if (error_ != 0) fail("write", error_);
  if (rename(partial_.c_str(), target_.c_str()) != 0) fail("rename", errno);
  file_.reset();

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

namespace {

namespace fs = std::filesystem;

/// A lock file that this process holds.
struct Held {
  Descriptor file;
  pid_t process = 0;
  int users = 0;
};

std::mutex mutex;

std::map<fs::path, Held>& held() {
  static auto* const all =
      new std::map<fs::path, Held>();  // never destroyed: static objects may release locks at exit
  return *all;
}

/// The line in which the job that has the lock describes itself.
std::string holder(int fd) {
  std::array<char, 512> text{};
  [[maybe_unused]] const auto length = ::pread(fd, text.data(), text.size() - 1, 0);
  const std::string_view all(text.data());
  const auto line = plain_line(all.substr(0, all.find('\n')));  // any process may have written it
  return line.empty() ? "it has not said which" : line;
}

/// Writes the description of this job into the locked file.
void sign(int fd, std::string_view run) {
  const auto line = concat("run ", run, " on host ", host_name(), ", pid ", ::getpid(), ", since ",
                           utc_text("%Y-%m-%d %H:%M:%S UTC"), '\n');
  if (::ftruncate(fd, 0) == 0) {
    [[maybe_unused]] const auto written = ::pwrite(fd, line.data(), line.size(), 0);
  }
}

Descriptor open_file(const fs::path& path) {
  constexpr int flags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | flags, 0644));
  // Another user's file can be locked, though not written.
  if (!file && errno == EACCES) {
    file = Descriptor(::open(path.c_str(), O_RDONLY | flags));
    if (!file) errno = EACCES;
  }
  return file;
}

/// Creates and locks the file; an empty descriptor if the file system does not support locks.
Descriptor lock(const fs::path& folder, const fs::path& path) {
  for (;;) {
    auto file = open_file(path);
    if (!file) {
      throw Error(concat(folder.string(), ": cannot make the lock file ", path.filename().string(),
                         ": ", why_not_opened(path, errno)));
    }
    if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
      // The previous owner may have removed the file between open() and flock().
      if (same_file(file.get(), path)) return file;
    } else if (errno == EWOULDBLOCK) {
      throw Error(concat(folder.string(),
                         ": another job writes to this folder: ", holder(file.get()),
                         ". Wait for its end or stop it, or name another folder."));
    } else if (errno != EINTR) {
      log::warn(
          concat(folder.string(), ": cannot be locked against other jobs: ", std::strerror(errno)));
      ::unlink(path.c_str());
      return {};
    }
  }
}

}  // namespace

std::string new_run_id() {
  std::random_device random;
  return hex(std::uint64_t{random()} << 32 | random(), 16);
}

const std::string& run_id() {
  static const std::string id = [] {
    const auto& given = Environment::get().run_id;
    return given.empty() ? new_run_id() : given;
  }();
  return id;
}

FolderLock::FolderLock(const fs::path& folder, std::string_view purpose, std::string_view run) {
  std::error_code error;
  const auto real = fs::canonical(folder, error);
  if (error) throw Error(concat(folder.string(), ": cannot be locked: ", error.message()));
  const auto file = real / concat(".lockstep-", purpose, ".lock");
  const std::lock_guard guard(mutex);
  auto& mine = held()[file];
  // False in a forked child process, and if the folder was removed and created again.
  const bool locked = mine.users > 0 && mine.process == ::getpid() &&
                      (!mine.file || same_file(mine.file.get(), file));
  if (!locked) {
    mine.file = lock(folder, file);
    mine.process = ::getpid();
    if (mine.file) sign(mine.file.get(), run);
  }
  ++mine.users;
  file_ = file;
}

FolderLock::~FolderLock() {
  const std::lock_guard guard(mutex);
  const auto found = held().find(file_);
  if (found == held().end()) return;
  auto& mine = found->second;
  if (mine.process != ::getpid()) return;  // a forked child: the lock is its parent's
  if (--mine.users > 0) return;
  if (mine.file && same_file(mine.file.get(), file_)) ::unlink(file_.c_str());
  if (mine.file) ::flock(mine.file.get(), LOCK_UN);
  held().erase(found);
}

}  // namespace lockstep::detail
