#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

struct gzFile_s;

namespace lockstep::inline v0_2::detail {

/// An IDX file of unsigned bytes, plain or compressed with gzip. Its sizes are known, and compared
/// with the size of the file, before memory is taken for its values.
/// Throws: DataError, from every function, with file, offset, and what was expected and found.
class IdxFile {
 public:
  /// Reads the header of folder/name, or of folder/name.gz if that does not exist. inner: the
  /// expected sizes of all dimensions except the first.
  IdxFile(const std::filesystem::path& folder, const std::string& name,
          std::span<const std::uint32_t> inner);

  const std::string& path() const { return path_; }
  /// Per dimension. The last dimension varies fastest.
  const std::vector<std::uint32_t>& sizes() const { return sizes_; }
  std::size_t header_bytes() const { return 4 + 4 * sizes_.size(); }
  std::size_t value_bytes() const { return value_bytes_; }

  /// Fills a span of value_bytes(). Must be called once.
  void read(std::span<std::uint8_t> values);

 private:
  /// Fills the span, or less at the end of the file. Returns the number of bytes.
  std::size_t read_some(std::span<std::uint8_t> bytes);
  std::uint32_t read_u32(std::string_view what);
  /// The most bytes that the file can hold.
  std::size_t most_bytes() const;

  std::string path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile_s*)> file_;
  std::size_t offset_ = 0;  ///< of the next byte, in the uncompressed content
  std::vector<std::uint32_t> sizes_;
  std::size_t value_bytes_ = 1;
};

}  // namespace lockstep::detail
