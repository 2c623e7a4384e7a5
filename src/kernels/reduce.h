#pragma once

#include <cstddef>
#include <span>

#include "lockstep/types.h"

namespace lockstep::inline v0_2::kernels {

/// outputs[j][i] = ((inputs[0][i] op inputs[1][i]) op inputs[2][i]) …, for every output j and every
/// i below count. The order is that of inputs, so all callers get the same bits. f16 and bf16 are
/// accumulated in f32 and rounded once, to nearest, ties to even. avg multiplies by 1/inputs.size()
/// before that rounding. Integers wrap. An output may be one of the inputs; other overlaps are not
/// allowed. Any alignment.
void reduce(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs,
            std::span<std::byte* const> outputs, std::size_t count);

}  // namespace lockstep::kernels
