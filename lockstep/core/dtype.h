#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep {

/// Element types that collectives carry. f16 is IEEE binary16, bf16 the upper half of an f32.
enum class DType : std::uint8_t { f32, f64, f16, bf16, i8, u8, i32, i64 };

inline constexpr DType all_dtypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16,
                                       DType::i8,  DType::u8,  DType::i32, DType::i64};

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::i8:
    case DType::u8:
      return 1;
  }
  return 0;
}

/// "float32", "bfloat16", … as LibTorch users know them.
std::string_view name(DType dtype);

/// The dtype of a name: "float32" or "f32", and so on.
/// Throws: InvalidArgument listing the valid names.
DType parse_dtype(std::string_view text);

}  // namespace lockstep
