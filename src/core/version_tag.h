#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace lockstep::inline v0_2::detail {

/// This library's version as ranks tell it to one another.
using VersionTag = std::array<char, 32>;

VersionTag version_tag();

/// Throws: CommError when a rank runs another version than rank 0, naming both.
void expect_version(std::string_view where, std::size_t rank, const VersionTag& found,
                    const VersionTag& of_rank_0);

}  // namespace lockstep::detail
