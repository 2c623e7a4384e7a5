#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "core/numeric/digest.h"
#include "core/text.h"
#include "formats/safetensors.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::safetensors {

std::vector<Piece> pieces_of(const Content& content, std::string_view file) {
  std::vector<Piece> pieces;
  for (const auto& [name, tensor] : content.tensors) {
    if (!tensor.defined() || tensor.layout() != at::kStrided || name == metadata_key)
      throw CheckpointError(
          detail::concat(file, ": tensor '", name, "': cannot be stored: ",
                         tensor.defined() ? "not dense, or its name is reserved" : "undefined"));
    at::Tensor values = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
    Entry entry{.name = name, .dtype = values.scalar_type(), .shape = values.sizes().vec()};
    entry.digest = detail::digest(bytes_of(values));
    pieces.push_back({.entry = std::move(entry), .values = std::move(values)});
  }
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Piece& a, const Piece& b) { return before_in_file(a.entry, b.entry); });
  return pieces;
}

bool before_in_file(const Entry& a, const Entry& b) {
  return c10::elementSize(a.dtype) > c10::elementSize(b.dtype);
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

std::span<std::byte> writable_bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

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

void Reader::fail(const char* action, int error) const {
  throw CheckpointError(
      concat(path_, ": cannot ", action, ": ", std::generic_category().message(error)));
}

}  // namespace lockstep::safetensors
