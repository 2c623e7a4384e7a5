#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::inline v0_2::record {

/// CRC-32C, of Castagnoli's polynomial. Source: RFC 3720, appendix B.4.
std::uint32_t crc32c(std::string_view bytes);

}  // namespace lockstep::record
