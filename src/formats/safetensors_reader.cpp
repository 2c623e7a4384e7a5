#include "formats/safetensors_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "core/text.h"
#include "formats/safetensors_format.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::safetensors {

using detail::concat;

Reader::Reader(const std::filesystem::path& path)
    : path_(path.string()), fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (fd_ < 0) fail("open", errno);
  try {
    const std::uint64_t bytes = size();
    std::array<std::byte, length_bytes> buffer{};
    const std::span first = std::span(buffer).first(std::min<std::size_t>(bytes, length_bytes));
    read_at(0, first);
    text_.resize(header_length(first, bytes, path_));
    read_at(length_bytes, std::as_writable_bytes(std::span(text_)));
    value_bytes_ = bytes - length_bytes - text_.size();
    header_ = parse_header(text_, value_bytes_, path_);
  } catch (...) {
    close(fd_);
    throw;
  }
}

Reader::~Reader() { close(fd_); }

void Reader::read(const Entry& entry, std::span<std::byte> values) const {
  read_at(length_bytes + text_.size() + entry.begin, values);
  check_values(entry, values, path_);
}

std::uint64_t Reader::size() const {
  struct stat status {};
  if (fstat(fd_, &status) != 0) fail("read", errno);
  if (!S_ISREG(status.st_mode)) throw CheckpointError(concat(path_, ": is not a regular file"));
  return static_cast<std::uint64_t>(status.st_size);
}

void Reader::read_at(std::uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count = pread(fd_, bytes.data(), std::min(bytes.size(), std::size_t{1} << 30),
                                static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("read", errno);
    if (count == 0) throw CheckpointError(concat(path_, ": became shorter while it was read"));
    offset += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void Reader::fail(const char* doing, int error) const {
  throw CheckpointError(
      concat(path_, ": cannot ", doing, ": ", std::generic_category().message(error)));
}

}  // namespace lockstep::safetensors
