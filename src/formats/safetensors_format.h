#pragma once

#include <c10/core/ScalarType.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::inline v0_2::safetensors {

static_assert(std::endian::native == std::endian::little,
              "values are copied as they lie in memory");

/// No header of a real model comes near; a longer one is a corrupt length. The format's own limit.
inline constexpr std::uint64_t longest_header = 100'000'000;
inline constexpr std::uint64_t length_bytes = 8;
inline constexpr const char* metadata_key = "__metadata__";

/// Digests stand as 16 hexadecimal digits; the header's own is taken with zeros in its place.
inline constexpr const char* header_digest_key = "xxh3";
inline constexpr const char* value_digests_key = "xxh3.tensors";
inline constexpr std::string_view checked_header = R"({"__metadata__":{"xxh3":")";
inline constexpr std::size_t digest_digits = 16;

inline std::string digits_of(std::uint64_t digest) {
  std::string digits(digest_digits, '0');
  for (std::size_t i = digest_digits; i > 0; --i, digest >>= 4)
    digits[i - 1] = "0123456789abcdef"[digest & 15];
  return digits;
}

struct DTypeName {
  std::string_view name;
  c10::ScalarType type;
};

inline constexpr DTypeName dtype_names[] = {
    {"F64", c10::ScalarType::Double}, {"F32", c10::ScalarType::Float},
    {"F16", c10::ScalarType::Half},   {"BF16", c10::ScalarType::BFloat16},
    {"I64", c10::ScalarType::Long},   {"I32", c10::ScalarType::Int},
    {"I16", c10::ScalarType::Short},  {"I8", c10::ScalarType::Char},
    {"U8", c10::ScalarType::Byte},    {"BOOL", c10::ScalarType::Bool}};

}  // namespace lockstep::safetensors
