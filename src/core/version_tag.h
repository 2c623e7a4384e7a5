#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace lockstep::inline v0_2::detail {

/// This library's version, in the form in which ranks exchange it.
using VersionTag = std::array<char, 32>;

VersionTag version_tag();

/// Throws: CommError if a rank runs another version than rank 0, naming both.
void expect_version(std::string_view where, std::size_t rank, const VersionTag& found,
                    const VersionTag& of_rank_0);

}  // namespace lockstep::detail
