#include "lockstep/types.h"

#include <array>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {
namespace {

struct EnumNames {
  DType dtype;
  std::string_view full;
  std::string_view brief;
};

constexpr std::array<EnumNames, 10> names{{{DType::f32, "float32", "f32"},
                                           {DType::f64, "float64", "f64"},
                                           {DType::f16, "float16", "f16"},
                                           {DType::bf16, "bfloat16", "bf16"},
                                           {DType::i8, "int8", "i8"},
                                           {DType::u8, "uint8", "u8"},
                                           {DType::i32, "int32", "i32"},
                                           {DType::i64, "int64", "i64"},
                                           {DType::i16, "int16", "i16"},
                                           {DType::boolean, "bool", "b8"}}};

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

std::string_view name(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::avg:
      return "avg";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
    case ReduceOp::product:
      return "product";
    case ReduceOp::band:
      return "band";
    case ReduceOp::bor:
      return "bor";
    case ReduceOp::bxor:
      return "bxor";
    case ReduceOp::premultiplied_sum:
      return "premultiplied_sum";
  }
  return "unknown";
}

ReduceOp parse_reduce_op(std::string_view text) {
  std::string valid;
  for (const auto op : all_reduce_ops) {
    if (name(op) == text) return op;
    valid += detail::concat(valid.empty() ? "" : ", ", name(op));
  }
  throw InvalidArgument(
      detail::concat("unknown reduce operation '", text, "', expected one of ", valid));
}

}  // namespace lockstep
