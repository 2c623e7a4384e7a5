#include "record/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <tuple>
#include <utility>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::record {
namespace {

/// Whether the file ends within a line, as that of a run that was killed may.
bool has_open_line(int fd, off_t size) {
  char last = '\n';
  return size > 0 && pread(fd, &last, 1, size - 1) == 1 && last != '\n';
}

}  // namespace

AppendFile::AppendFile(std::filesystem::path path, bool kept) : path_(std::move(path)) {
  fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | (kept ? 0 : O_TRUNC), 0666);
  if (fd_ < 0) {
    throw Error(detail::concat(path_.string(), ": cannot write: ", std::strerror(errno)));
  }
  if (kept && has_open_line(fd_, lseek(fd_, 0, SEEK_END))) add("\n");
}

AppendFile::AppendFile(AppendFile&& other) noexcept { *this = std::move(other); }

AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(error_, other.error_);
  return *this;
}

AppendFile::~AppendFile() {
  if (fd_ >= 0) close(fd_);
}

void AppendFile::add(std::string_view record) noexcept {
  if (fd_ < 0 || error_ != 0) return;
  const off_t before = lseek(fd_, 0, SEEK_END);
  while (!record.empty()) {
    const ssize_t count = write(fd_, record.data(), record.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      error_ = errno;
      // Half a record would spoil what is written before and after it.
      if (before >= 0) std::ignore = ftruncate(fd_, before);
      return;
    }
    record.remove_prefix(static_cast<std::size_t>(count));
  }
}

}  // namespace lockstep::record
