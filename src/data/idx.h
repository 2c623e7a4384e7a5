#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace lockstep::inline v0_2::detail {

/// The array of unsigned bytes that one IDX file holds.
struct IdxArray {
  std::filesystem::path file;        ///< the one that was read
  std::vector<std::uint32_t> sizes;  ///< of each dimension
  std::vector<std::uint8_t> values;  ///< the last dimension varies fastest
  std::size_t header_bytes() const { return 4 + 4 * sizes.size(); }
};

/// Reads folder/name, or folder/name.gz where there is no such file. inner are the sizes that all
/// dimensions but the first must have.
/// Throws: DataError naming file, offset, expected and found.
IdxArray read_idx(const std::filesystem::path& folder, const std::string& name,
                  std::span<const std::uint32_t> inner);

}  // namespace lockstep::detail
