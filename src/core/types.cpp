#include "lockstep/types.h"

#include "core/enum_names.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {
namespace {

constexpr detail::EnumNames<DType::boolean> dtypes("float32", "float64", "float16", "bfloat16",
                                                   "int8", "uint8", "int32", "int64", "int16",
                                                   "bool");
constexpr detail::EnumNames<DType::boolean> brief_dtypes("f32", "f64", "f16", "bf16", "i8", "u8",
                                                         "i32", "i64", "i16", "b8");

}  // namespace

std::string_view name(DType dtype) { return dtypes.of(dtype); }

DType parse_dtype(std::string_view text) {
  for (const auto dtype : all_dtypes) {
    if (name(dtype) == text || brief_dtypes.of(dtype) == text) return dtype;
  }
  const auto shown = [](DType dtype) {
    return detail::concat(name(dtype), " (", brief_dtypes.of(dtype), ")");
  };
  throw InvalidArgument(detail::concat("unknown dtype '", text, "', expected one of ",
                                       detail::joined(all_dtypes, ", ", shown)));
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
