#pragma once

#include <cstddef>
#include <span>

#include "lockstep/core/reduce_op.h"
#include "lockstep/core/wire.h"

namespace lockstep::kernels {

/// outputs[j][i] = ((r(inputs[0][i]) + r(inputs[1][i])) + …), where r is what wire makes of an
/// element; all float32. The op is sum or avg; avg multiplies by 1/inputs.size(), before rounding
/// if wire says so, else after the sum. An output may be one of the inputs; other overlaps are not
/// allowed. Any alignment.
void reduce_rounded(const Wire& wire, ReduceOp op, std::span<const std::byte* const> inputs,
                    std::span<std::byte* const> outputs, std::size_t count);

}  // namespace lockstep::kernels
