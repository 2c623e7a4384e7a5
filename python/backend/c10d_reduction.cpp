#include "backend/c10d_reduction.h"

#include <ATen/ATen.h>

#include <optional>

#include "backend/errors.h"

namespace lockstep_torch {
namespace {

using Kind = c10d::ReduceOp::RedOpType;

std::optional<lockstep::DType> kernel_dtype(at::ScalarType type) {
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
    case at::kBool:
      return lockstep::DType::u8;
    case at::kInt:
      return lockstep::DType::i32;
    case at::kLong:
      return lockstep::DType::i64;
    default:
      return std::nullopt;
  }
}

bool is_bitwise(Kind kind) {
  return kind == c10d::ReduceOp::BAND || kind == c10d::ReduceOp::BOR ||
         kind == c10d::ReduceOp::BXOR;
}

const char* name(Kind kind) {
  constexpr const char* names[] = {"SUM",  "AVG", "PRODUCT", "MIN",       "MAX",
                                   "BAND", "BOR", "BXOR",    "PREMUL_SUM"};
  return kind < std::size(names) ? names[kind] : "an unknown reduction";
}

/// A bool is 0 or 1, so that a sum (logical or) is the maximum and a product the minimum.
lockstep::ReduceOp kernel_op(Kind kind, bool is_bool) {
  switch (kind) {
    case c10d::ReduceOp::AVG:
      return lockstep::ReduceOp::avg;
    case c10d::ReduceOp::PRODUCT:
      return is_bool ? lockstep::ReduceOp::min : lockstep::ReduceOp::product;
    case c10d::ReduceOp::MIN:
      return lockstep::ReduceOp::min;
    case c10d::ReduceOp::MAX:
      return lockstep::ReduceOp::max;
    default:
      return is_bool ? lockstep::ReduceOp::max : lockstep::ReduceOp::sum;
  }
}

}  // namespace

Reduction reduction_of(const c10d::ReduceOp& op, at::ScalarType type, const char* operation) {
  const Kind kind = op.op_;
  const auto refuse_pair = [&](const char* expected) {
    refuse(operation, c10::str("got ReduceOp.", name(kind), " of ", type, ", expected ", expected));
  };
  if (kind > c10d::ReduceOp::PREMUL_SUM) {
    refuse(operation,
           "got an unknown ReduceOp, expected SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, "
           "BXOR or PREMUL_SUM");
  }
  const bool is_integer = c10::isIntegralType(type, /*includeBool=*/true);
  if (is_bitwise(kind)) {
    if (!is_integer) refuse_pair("a dtype of integers or bool");
    return {.kind = kind, .gathers = true};
  }
  if (c10::isComplexType(type) && kind != c10d::ReduceOp::SUM && kind != c10d::ReduceOp::AVG &&
      kind != c10d::ReduceOp::PREMUL_SUM) {
    refuse_pair("SUM, AVG or PREMUL_SUM for complex numbers");
  }
  if (type == at::kBool && (kind == c10d::ReduceOp::AVG || kind == c10d::ReduceOp::PREMUL_SUM)) {
    refuse_pair("another reduction for bool");
  }
  if (const auto dtype = kernel_dtype(type)) {
    return {.kind = kind, .dtype = *dtype, .op = kernel_op(kind, type == at::kBool)};
  }
  if (!is_integer || c10::isBarebonesUnsignedType(type)) {
    refuse_pair(
        "float64, float32, float16, bfloat16, complex, int64, int32, int16, int8, uint8 or "
        "bool");
  }
  return {.kind = kind, .gathers = true};
}

at::Tensor contribution(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  auto real = tensor.is_complex() ? at::view_as_real(tensor) : tensor;
  if (op.op_ == c10d::ReduceOp::PREMUL_SUM) {
    const auto* factor = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
    TORCH_CHECK_VALUE(factor != nullptr, "lockstep: got PREMUL_SUM without a factor");
    real = factor->tensor_factor.defined() ? real * factor->tensor_factor.to(real.scalar_type())
                                           : at::mul(real, factor->double_factor);
    real = real.to(c10::toRealValueType(tensor.scalar_type()));
  }
  return real.contiguous();
}

at::Tensor reduce_rows(const at::Tensor& rows, Kind kind) {
  auto result = rows[0].clone();
  for (std::int64_t row = 1; row < rows.size(0); ++row) {
    const auto next = rows[row];
    switch (kind) {
      case c10d::ReduceOp::BAND:
        result.bitwise_and_(next);
        break;
      case c10d::ReduceOp::BOR:
        result.bitwise_or_(next);
        break;
      case c10d::ReduceOp::BXOR:
        result.bitwise_xor_(next);
        break;
      case c10d::ReduceOp::PRODUCT:
        result.mul_(next);
        break;
      case c10d::ReduceOp::MIN:
        result.copy_(at::minimum(result, next));
        break;
      case c10d::ReduceOp::MAX:
        result.copy_(at::maximum(result, next));
        break;
      default:
        result.add_(next);
    }
  }
  if (kind == c10d::ReduceOp::AVG) result.div_(rows.size(0), "trunc");
  return result;
}

}  // namespace lockstep_torch
