#include "backend/c10d_reduction.h"

#include <ATen/ATen.h>

#include <optional>

#include "backend/errors.h"

namespace lockstep_torch {
namespace {

using Kind = c10d::ReduceOp::RedOpType;

/// bitwise: whether only the bits of the elements matter.
std::optional<lockstep::DType> dtype_of(at::ScalarType type, bool bitwise) {
  switch (type) {
    case at::kFloat:
    case at::kComplexFloat:
      return lockstep::DType::f32;
    case at::kDouble:
    case at::kComplexDouble:
      return lockstep::DType::f64;
    case at::kHalf:
    case at::kComplexHalf:
      return lockstep::DType::f16;
    case at::kBFloat16:
      return lockstep::DType::bf16;
    case at::kChar:
      return lockstep::DType::i8;
    case at::kByte:
      return lockstep::DType::u8;
    case at::kBool:
      return lockstep::DType::boolean;
    case at::kShort:
      return lockstep::DType::i16;
    case at::kInt:
      return lockstep::DType::i32;
    case at::kLong:
      return lockstep::DType::i64;
    case at::kUInt16:
      return bitwise ? std::optional(lockstep::DType::i16) : std::nullopt;
    case at::kUInt32:
      return bitwise ? std::optional(lockstep::DType::i32) : std::nullopt;
    case at::kUInt64:
      return bitwise ? std::optional(lockstep::DType::i64) : std::nullopt;
    default:
      return std::nullopt;
  }
}

const char* name(Kind kind) {
  constexpr const char* names[] = {"SUM",  "AVG", "PRODUCT", "MIN",       "MAX",
                                   "BAND", "BOR", "BXOR",    "PREMUL_SUM"};
  return kind < std::size(names) ? names[kind] : "an unknown reduction";
}

lockstep::Reduction premultiplied(const c10d::ReduceOp& op, const char* operation) {
  const auto* factor = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
  if (factor == nullptr) refuse(operation, "got PREMUL_SUM without a factor, expected a number");
  if (!factor->tensor_factor.defined()) {
    return lockstep::premultiplied_sum(factor->double_factor);
  }
  if (factor->tensor_factor.numel() != 1) {
    refuse(operation, c10::str("got a factor of PREMUL_SUM with ", factor->tensor_factor.numel(),
                               " elements, expected 1"));
  }
  return lockstep::premultiplied_sum(factor->tensor_factor.item<double>());
}

lockstep::Reduction library_reduction(const c10d::ReduceOp& op, const char* operation) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return lockstep::ReduceOp::sum;
    case c10d::ReduceOp::AVG:
      return lockstep::ReduceOp::avg;
    case c10d::ReduceOp::PRODUCT:
      return lockstep::ReduceOp::product;
    case c10d::ReduceOp::MIN:
      return lockstep::ReduceOp::min;
    case c10d::ReduceOp::MAX:
      return lockstep::ReduceOp::max;
    case c10d::ReduceOp::BAND:
      return lockstep::ReduceOp::band;
    case c10d::ReduceOp::BOR:
      return lockstep::ReduceOp::bor;
    case c10d::ReduceOp::BXOR:
      return lockstep::ReduceOp::bxor;
    case c10d::ReduceOp::PREMUL_SUM:
      return premultiplied(op, operation);
    default:
      refuse(operation,
             "got an unknown ReduceOp, expected SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, "
             "BXOR or PREMUL_SUM");
  }
}

}  // namespace

Reduction reduction_of(const c10d::ReduceOp& op, at::ScalarType type, const char* operation) {
  const auto reduction = library_reduction(op, operation);
  const auto refuse_pair = [&](const char* expected) {
    refuse(operation,
           c10::str("got ReduceOp.", name(op.op_), " of ", type, ", expected ", expected));
  };
  const bool bitwise = reduction.op == lockstep::ReduceOp::band ||
                       reduction.op == lockstep::ReduceOp::bor ||
                       reduction.op == lockstep::ReduceOp::bxor;
  const auto dtype = dtype_of(type, bitwise);
  if (!dtype) {
    refuse_pair(
        "float64, float32, float16, bfloat16, complex, int64, int32, int16, int8, uint8 or bool");
  }
  if (c10::isComplexType(type) && reduction.op != lockstep::ReduceOp::sum &&
      reduction.op != lockstep::ReduceOp::avg &&
      reduction.op != lockstep::ReduceOp::premultiplied_sum) {
    refuse_pair("SUM, AVG or PREMUL_SUM for complex numbers");
  }
  if (!lockstep::has_reduction(*dtype, reduction.op)) {
    refuse_pair(bitwise                              ? "a dtype of integers or bool"
                : *dtype == lockstep::DType::boolean ? "another reduction for bool"
                                                     : "floating-point or complex numbers");
  }
  return {.dtype = *dtype, .reduction = reduction};
}

at::Tensor contiguous_reals(const at::Tensor& tensor) {
  return (tensor.is_complex() ? at::view_as_real(tensor) : tensor).contiguous();
}

void copy_reals(const at::Tensor& reals, const at::Tensor& tensor) {
  if (tensor.is_contiguous() && reals.data_ptr() == tensor.data_ptr()) return;
  const auto target = tensor.is_complex() ? at::view_as_real(tensor) : tensor;
  target.copy_(reals.view(target.sizes()));
}

}  // namespace lockstep_torch
