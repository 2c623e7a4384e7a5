#include "core/system/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <mutex>
#include <system_error>

#include "core/environment.h"
#include "core/log.h"
#include "core/system/process.h"
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

std::map<std::string, std::string> fields(const std::filesystem::path& file) {
  std::map<std::string, std::string> found;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    const auto name_end = line.find_last_not_of(" \t", colon - 1);
    const auto value = line.find_first_not_of(" \t", colon + 1);
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
  const auto length = ::pread(fd, text.data(), text.size(), 0);
  std::string line(text.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  line = line.substr(0, line.find('\n'));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < ' ') c = '?';  // any process may have written it
  }
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
  if (!file && errno == EACCES) file = Descriptor(::open(path.c_str(), O_RDONLY | flags));
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
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number) {
    number = static_cast<std::uint64_t>(std::time(nullptr)) << 32 |
             static_cast<std::uint32_t>(::getpid());
  }
  return hex(number, 16);
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
    try {
      mine.file = lock(folder, file);
    } catch (...) {
      if (mine.users == 0) held().erase(file);
      throw;
    }
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
