#include <array>

#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2 {
namespace {

struct Names {
  DType dtype;
  std::string_view full;
  std::string_view brief;
};

constexpr std::array<Names, 8> names{{{DType::f32, "float32", "f32"},
                                      {DType::f64, "float64", "f64"},
                                      {DType::f16, "float16", "f16"},
                                      {DType::bf16, "bfloat16", "bf16"},
                                      {DType::i8, "int8", "i8"},
                                      {DType::u8, "uint8", "u8"},
                                      {DType::i32, "int32", "i32"},
                                      {DType::i64, "int64", "i64"}}};

}  // namespace

std::string_view name(DType dtype) {
  for (const auto& entry : names) {
    if (entry.dtype == dtype) return entry.full;
  }
  return "unknown";
}

DType parse_dtype(std::string_view text) {
  std::string valid;
  for (const auto& entry : names) {
    if (entry.full == text || entry.brief == text) return entry.dtype;
    valid += detail::concat(valid.empty() ? "" : ", ", entry.full, " (", entry.brief, ")");
  }
  throw InvalidArgument(detail::concat("unknown dtype '", text, "', expected one of ", valid));
}

}  // namespace lockstep
