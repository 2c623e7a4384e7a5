#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline v0_2::safetensors {

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
