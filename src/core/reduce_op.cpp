#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2 {

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
