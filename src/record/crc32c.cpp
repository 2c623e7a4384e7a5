#include "record/crc32c.h"

#include <array>

namespace lockstep::inline v0_2::record {
namespace {

constexpr std::array<std::uint32_t, 256> make_table() {
  constexpr std::uint32_t polynomial = 0x82f63b78;  // bits in reverse
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ ((rest & 1) != 0 ? polynomial : 0);
    table[byte] = rest;
  }
  return table;
}

constexpr auto table = make_table();

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t sum = ~0U;
  for (const char byte : bytes)
    sum = table[(sum ^ static_cast<unsigned char>(byte)) & 255] ^ sum >> 8;
  return ~sum;
}

}  // namespace lockstep::record
