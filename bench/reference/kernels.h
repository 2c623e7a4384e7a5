#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/quantize.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::kernels::reference {

/// The result of kernels::reduce, computed by scalar code. Arithmetic flushes denormals
/// if the calling thread does, as in kernels.
void reduce(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs,
            std::span<std::byte* const> outputs, std::size_t count);

float from_f16(std::uint16_t half);
float from_bf16(std::uint16_t half);
/// Round to nearest, ties to even; NaN stays NaN.
std::uint16_t to_f16(float value);
std::uint16_t to_bf16(float value);

/// The result of kernels::reduce_rounded.
void reduce_rounded(const Wire& wire, ReduceOp op, std::span<const std::span<const float>> inputs,
                    std::span<float> output);

/// The indices that kernels::select_top and kernels::select_above select. Denormals are compared as
/// in IEEE 754, also if the calling thread flushes them.
template <class T>
std::vector<std::uint32_t> largest(std::span<const T> data, std::size_t k);
template <class T>
std::vector<std::uint32_t> above(std::span<const T> data, T threshold);

/// The result of kernels::quantize for one chunk. Missing elements of a short chunk count as zeros.
QuantizedChunk quantized(std::span<const float> values);

}  // namespace lockstep::kernels::reference
