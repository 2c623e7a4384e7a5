#pragma once

#include <c10/core/ScalarType.h>

#include <bit>
#include <cstdint>
#include <string_view>

namespace lockstep::safetensors {

static_assert(std::endian::native == std::endian::little,
              "values are copied as they lie in memory");

/// No header of a real model comes near; a longer one is a corrupt length. The format's own limit.
inline constexpr std::uint64_t longest_header = 100'000'000;
inline constexpr std::uint64_t length_bytes = 8;
inline constexpr const char* metadata_key = "__metadata__";

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
