#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline v0_2::safetensors {

static_assert(std::endian::native == std::endian::little,
              "values are copied as they lie in memory");

/// No header of a real model comes near; a longer one is a corrupt length. The format's own limit.
inline constexpr std::uint64_t longest_header = 100'000'000;
inline constexpr std::uint64_t length_bytes = 8;
inline constexpr const char* metadata_key = "__metadata__";

/// Digests stand as 16 hexadecimal digits; the header's own is taken with zeros in its place.
inline constexpr const char* header_digest_key = "xxh3";
inline constexpr const char* value_digests_key = "xxh3.tensors";
inline constexpr std::string_view checked_header = R"({"__metadata__":{"xxh3":")";
inline constexpr std::size_t digest_digits = 16;

inline std::string digits_of(std::uint64_t digest) {
  std::string digits(digest_digits, '0');
  for (std::size_t i = digest_digits; i > 0; --i, digest >>= 4)
    digits[i - 1] = "0123456789abcdef"[digest & 15];
  return digits;
}

struct DTypeName {
  std::string_view name;
  c10::ScalarType type;
};

inline constexpr DTypeName dtype_names[] = {
    {"F64", c10::ScalarType::Double}, {"F32", c10::ScalarType::Float},
    {"F16", c10::ScalarType::Half},   {"BF16", c10::ScalarType::BFloat16},
    {"I64", c10::ScalarType::Long},   {"I32", c10::ScalarType::Int},
    {"I16", c10::ScalarType::Short},  {"I8", c10::ScalarType::Char},
    {"U8", c10::ScalarType::Byte},    {"BOOL", c10::ScalarType::Bool}};

/// One tensor as a header describes it.
struct Entry {
  std::string name;
  c10::ScalarType dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  ///< of its values, from the end of the header
  std::uint64_t end = 0;
  std::optional<std::uint64_t> digest{};  ///< of its values; absent in other programs' files
};

/// The first part of a file. Lockstep begins the metadata with digests, as two more notes: of the
/// header itself, and of every tensor's values in file order.
struct Header {
  std::vector<Entry> entries;  ///< in file order: no overlap, no hole
  std::map<std::string, std::string> metadata;
  bool checked = false;  ///< whether it had digests, of itself and of all values
};

/// The bytes that a file begins with, the length included. Begins and ends are the header's to set.
/// Throws: CheckpointError naming file and tensor.
std::string write_header(Header& header, std::string_view file);

/// Reads what follows the length, and compares it with its digest if it has one.
/// Throws: CheckpointError naming file, tensor, what was found and what was expected.
Header parse_header(std::string_view text, std::uint64_t value_bytes, std::string_view file);

/// The length that the first bytes of a file tell.
/// Throws: CheckpointError when the file cannot hold so many.
std::uint64_t header_length(std::span<const std::byte> first, std::uint64_t file_bytes,
                            std::string_view file);

/// A tensor for the values of an entry, uninitialised.
/// Throws: CheckpointError when there is no memory for it.
at::Tensor empty_for(const Entry& entry, std::string_view file);

/// Throws: CheckpointError when the values are not those that were written.
void check_values(const Entry& entry, std::span<const std::byte> values, std::string_view file);

}  // namespace lockstep::safetensors
