#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/system/process.h"
#include "core/text.h"
#include "lockstep/model_files.h"

namespace lockstep::inline v0_2::safetensors {

static_assert(std::endian::native == std::endian::little,
              "values are copied from memory without a conversion");

/// The format's limit. A longer header is a sign of a damaged length.
inline constexpr std::uint64_t max_header_bytes = 100'000'000;
inline constexpr std::uint64_t length_bytes = 8;
inline constexpr const char* metadata_key = "__metadata__";

/// Digests are 16 hexadecimal digits. The header's digest is computed with zeros in its own place.
inline constexpr const char* header_digest_key = "xxh3";
inline constexpr const char* value_digests_key = "xxh3.tensors";
inline constexpr std::string_view checked_header = R"({"__metadata__":{"xxh3":")";
inline constexpr std::size_t digest_digits = 16;

inline std::string digits_of(std::uint64_t digest) { return detail::hex(digest, digest_digits); }

struct DTypeName {
  std::string_view name;
  c10::ScalarType type;
};

inline constexpr DTypeName dtype_names[] = {{"F64", c10::ScalarType::Double},
                                            {"F32", c10::ScalarType::Float},
                                            {"F16", c10::ScalarType::Half},
                                            {"BF16", c10::ScalarType::BFloat16},
                                            {"I64", c10::ScalarType::Long},
                                            {"I32", c10::ScalarType::Int},
                                            {"I16", c10::ScalarType::Short},
                                            {"I8", c10::ScalarType::Char},
                                            {"U64", c10::ScalarType::UInt64},
                                            {"U32", c10::ScalarType::UInt32},
                                            {"U16", c10::ScalarType::UInt16},
                                            {"U8", c10::ScalarType::Byte},
                                            {"BOOL", c10::ScalarType::Bool},
                                            {"C64", c10::ScalarType::ComplexFloat},
                                            {"F8_E4M3", c10::ScalarType::Float8_e4m3fn},
                                            {"F8_E5M2", c10::ScalarType::Float8_e5m2},
                                            {"F8_E8M0", c10::ScalarType::Float8_e8m0fnu}};

/// The header's description of one tensor.
struct Entry {
  std::string name;
  c10::ScalarType dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  ///< offset of its values after the header. Units: bytes
  std::uint64_t end = 0;
  std::optional<std::uint64_t> digest{};  ///< of its values; absent in files of other programs
};

/// The header of a file. In Lockstep's files the metadata begins with two digests: that of the
/// header, and those of every tensor's values in file order.
struct Header {
  std::vector<Entry> entries;  ///< in file order, without gaps or overlaps
  std::map<std::string, std::string> metadata;
  bool checked = false;  ///< whether the header has digests of itself and of all values
};

/// The first bytes of a file: length and header. Sets begin and end of the entries.
/// Throws: CheckpointError with file and tensor.
std::string write_header(Header& header, std::string_view file);

/// Parses the text after the length, and compares its digest if it has one.
/// Throws: CheckpointError with file, tensor, and what was found and expected.
Header parse_header(std::string_view text, std::uint64_t value_bytes, std::string_view file);

/// The length of the header, from the first bytes of a file.
/// Throws: CheckpointError when the file is shorter than that.
std::uint64_t header_length(std::span<const std::byte> first, std::uint64_t file_bytes,
                            std::string_view file);

/// An uninitialised tensor for the values of an entry.
/// Throws: CheckpointError when memory is short.
at::Tensor empty_for(const Entry& entry, std::string_view file);

/// Throws: CheckpointError when the values do not match the entry's digest.
void check_values(const Entry& entry, std::span<const std::byte> values, std::string_view file);

/// A tensor to be written into a file.
struct Piece {
  Entry entry;
  at::Tensor values;  ///< contiguous, on the CPU
};

/// Throws: CheckpointError, which begins with where, for a tensor that no file can have.
void check_storable(std::string_view where, const std::string& name, const at::Tensor& tensor);

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

  /// The text of the header.
  const std::string& text() const { return text_; }
  std::uint64_t value_bytes() const { return value_bytes_; }

  const Header& header() const { return header_; }
  /// Reads the values of an entry and compares their digest.
  void read(const Entry& entry, std::span<std::byte> values) const;

 private:
  void read_at(std::uint64_t offset, std::span<std::byte> bytes) const;
  [[noreturn]] void fail(const char* action, int error) const;

  std::string path_;
  detail::Descriptor fd_;
  std::string text_;
  std::uint64_t value_bytes_ = 0;
  Header header_;
};

}  // namespace lockstep::safetensors
