#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace lockstep::inline v0_2::record {

/// The table of a cyclic redundancy check of 32 bits. polynomial: its bits in reverse.
constexpr std::array<std::uint32_t, 256> crc_table(std::uint32_t polynomial) {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ ((rest & 1) != 0 ? polynomial : 0);
    table[byte] = rest;
  }
  return table;
}

/// The check of bytes that follow those of an earlier one.
inline std::uint32_t crc_of(const std::array<std::uint32_t, 256>& table, std::string_view bytes,
                            std::uint32_t earlier = 0) {
  std::uint32_t sum = ~earlier;
  for (const char byte : bytes)
    sum = table[(sum ^ static_cast<unsigned char>(byte)) & 255] ^ sum >> 8;
  return ~sum;
}

}  // namespace lockstep::record
