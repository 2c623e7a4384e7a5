#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/core/dtype.h"
#include "lockstep/core/reduce_op.h"

namespace lockstep::kernels::reference {

/// What kernels::reduce computes, one element at a time in plain code. For tests and checks, not
/// for speed.
void reduce(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs,
            std::span<std::byte* const> outputs, std::size_t count);

float from_f16(std::uint16_t half);
float from_bf16(std::uint16_t half);
/// The nearest half, of two equally near ones the even; NaN stays NaN.
std::uint16_t to_f16(float value);
std::uint16_t to_bf16(float value);

}  // namespace lockstep::kernels::reference
