#include "lockstep/types.h"

#include <array>

#include "core/enum_names.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {
namespace {

struct DTypeNames {
  DType dtype;
  std::string_view full;
  std::string_view brief;
};

constexpr std::array<DTypeNames, 10> names{{{DType::f32, "float32", "f32"},
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
  for (const auto& entry : names) {
    if (entry.full == text || entry.brief == text) return entry.dtype;
  }
  const auto shown = [](const DTypeNames& entry) {
    return detail::concat(entry.full, " (", entry.brief, ")");
  };
  throw InvalidArgument(detail::concat("unknown dtype '", text, "', expected one of ",
                                       detail::joined(names, ", ", shown)));
}

std::string_view name(ReduceOp op) {
  constexpr detail::EnumNames<ReduceOp::premultiplied_sum> ops(
      "sum", "avg", "min", "max", "product", "band", "bor", "bxor", "premultiplied_sum");
  return ops.of(op);
}

ReduceOp parse_reduce_op(std::string_view text) {
  for (const auto op : all_reduce_ops) {
    if (name(op) == text) return op;
  }
  const auto shown = [](ReduceOp op) { return name(op); };
  throw InvalidArgument(detail::concat("unknown reduce operation '", text, "', expected one of ",
                                       detail::joined(all_reduce_ops, ", ", shown)));
}

}  // namespace lockstep
