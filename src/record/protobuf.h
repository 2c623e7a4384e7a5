#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace lockstep::inline v0_2::record {

// Protocol buffers of a few fields are written by hand. Their numbers are little-endian.
static_assert(std::endian::native == std::endian::little, "fields are written as they lie here");

template <class Number>
void put(std::string& out, Number number) {
  char bytes[sizeof number];
  std::memcpy(bytes, &number, sizeof number);
  out.append(bytes, sizeof number);
}

inline void put_varint(std::string& out, std::uint64_t number) {
  for (; number >= 128; number >>= 7) out += static_cast<char>(number | 128);
  out += static_cast<char>(number);
}

/// A field of text, or of a message. key: field number << 3 | wire type 2.
inline void put_text(std::string& out, std::uint64_t key, std::string_view text) {
  put_varint(out, key);
  put_varint(out, text.size());
  out += text;
}

}  // namespace lockstep::record
