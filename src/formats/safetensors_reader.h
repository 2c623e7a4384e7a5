#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/safetensors_header.h"
#include "lockstep/model_files.h"

namespace lockstep::inline v0_2::safetensors {

/// A tensor to be written into a file.
struct Piece {
  Entry entry;
  at::Tensor values;  ///< contiguous, on the CPU
};

/// All tensors of content, in file order, with their digests.
/// Throws: CheckpointError with file and tensor.
std::vector<Piece> pieces_of(const Content& content, std::string_view file);

/// The order of tensors in a file: wide dtypes first, so that every tensor is aligned to its dtype.
bool before_in_file(const Entry& a, const Entry& b);

std::span<const std::byte> bytes_of(const at::Tensor& tensor);
std::span<std::byte> writable_bytes_of(const at::Tensor& tensor);

/// Reads a file tensor by tensor.
/// Throws: CheckpointError, from every function, with file, tensor and cause.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  /// The text of the header.
  const std::string& text() const { return text_; }
  std::uint64_t value_bytes() const { return value_bytes_; }

  const Header& header() const { return header_; }
  /// Reads the values of an entry and compares their digest.
  void read(const Entry& entry, std::span<std::byte> values) const;

 private:
  std::uint64_t size() const;
  void read_at(std::uint64_t offset, std::span<std::byte> bytes) const;
  [[noreturn]] void fail(const char* action, int error) const;

  std::string path_;
  int fd_;
  std::string text_;
  std::uint64_t value_bytes_ = 0;
  Header header_;
};

}  // namespace lockstep::safetensors
