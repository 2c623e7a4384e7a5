#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

namespace lockstep::testing {

/// As the headers of MNIST's files hold them.
inline std::string big_endian(std::initializer_list<std::uint32_t> values) {
  std::string bytes;
  for (const std::uint32_t value : values)
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(value >> shift & 0xff);
  return bytes;
}

}  // namespace lockstep::testing
