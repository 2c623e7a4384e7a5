#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/core/dtype.h"
#include "lockstep/core/reduce_op.h"
#include "lockstep/core/wire.h"
#include "lockstep/kernels/quantize.h"

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

/// What kernels::reduce_rounded computes.
void reduce_rounded(const Wire& wire, ReduceOp op, std::span<const std::span<const float>> inputs,
                    std::span<float> output);

/// The indices that kernels::select_top and kernels::select_above pick.
template <class T>
std::vector<std::uint32_t> largest(std::span<const T> data, std::size_t k);
template <class T>
std::vector<std::uint32_t> above(std::span<const T> data, T threshold);

/// What kernels::quantize makes of one chunk; the rest of a short one counts as zeros.
QuantizedChunk quantized(std::span<const float> values);

}  // namespace lockstep::kernels::reference
