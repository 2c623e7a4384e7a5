#pragma once

#include <cstddef>
#include <span>

#include "lockstep/types.h"

namespace lockstep::inline v0_2::kernels {

/// outputs[j][i] = the half nearest to ((r(inputs[0][i]) + r(inputs[1][i])) + …), where r is what
/// wire makes of an element; all float32. The op is sum or avg; avg multiplies by 1/inputs.size(),
/// before the first rounding if wire says so, else after the sum. An output may be one of the
/// inputs; other overlaps are not allowed. Any alignment.
void reduce_rounded(const Wire& wire, ReduceOp op, std::span<const std::byte* const> inputs,
                    std::span<std::byte* const> outputs, std::size_t count);

// The same in three steps, for ranks that exchange halves. Each rank rounds its values, one rank
// reduces the halves of all, and each rank widens the result.

/// halves[i] = r(values[i]), for a reduction over so many ranks. halves may begin where values do;
/// other overlaps are not allowed.
void round_to_halves(const Wire& wire, ReduceOp op, std::size_t ranks, const std::byte* values,
                     std::byte* halves, std::size_t count);
/// outputs[j][i] = the half nearest to (inputs[0][i] + inputs[1][i]) + …, times 1/inputs.size() for
/// avg unless wire.predivide is set. Overlaps as above.
void reduce_halves(const Wire& wire, ReduceOp op, std::span<const std::byte* const> inputs,
                   std::span<std::byte* const> outputs, std::size_t count);
/// values[i] = halves[i]. halves may be the second half of values; other overlaps are not allowed.
void widen_halves(const Wire& wire, const std::byte* halves, std::byte* values, std::size_t count);

}  // namespace lockstep::kernels
