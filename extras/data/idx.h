#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace lockstep::inline v0_2::detail {

/// The content of an IDX file of unsigned bytes.
struct IdxArray {
  std::filesystem::path file;        ///< the file that was read
  std::vector<std::uint32_t> sizes;  ///< per dimension
  std::vector<std::uint8_t> values;  ///< the last dimension varies fastest
  std::size_t header_bytes() const { return 4 + 4 * sizes.size(); }
};

/// Reads folder/name, or folder/name.gz if that does not exist. inner: the expected sizes of all
/// dimensions except the first.
/// Throws: DataError with file, offset, and what was expected and found.
IdxArray read_idx(const std::filesystem::path& folder, const std::string& name,
                  std::span<const std::uint32_t> inner);

}  // namespace lockstep::detail
