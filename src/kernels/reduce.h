#pragma once

#include <cstddef>
#include <span>

#include "lockstep/types.h"

namespace lockstep::inline v0_2::kernels {

/// outputs[j][i] = ((inputs[0][i] op inputs[1][i]) op inputs[2][i]) …, for every output j and every
/// i below count. The order is that of inputs, so all callers get the same bits. f16 and bf16 are
/// accumulated in f32 and rounded once, to nearest, ties to even. avg multiplies by 1/inputs.size()
/// before that rounding. Integers wrap. premultiplied_sum is sum: its inputs are products. An
/// output may be one of the inputs; other overlaps are not allowed. Any alignment. Throws:
/// InvalidArgument unless has_reduction(dtype, op).
void reduce(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs,
            std::span<std::byte* const> outputs, std::size_t count);

/// output[i] = input[i] · factor, for floats. f16 and bf16 are multiplied in f32 and rounded once.
/// The factor is rounded to the type of the multiplication. output may be input.
/// Throws: InvalidArgument for integers.
void multiply(DType dtype, double factor, const std::byte* input, std::byte* output,
              std::size_t count);

}  // namespace lockstep::kernels
