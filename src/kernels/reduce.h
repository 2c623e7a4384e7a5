#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "lockstep/types.h"

namespace lockstep::inline v0_2::detail {

/// The types by which elements of a dtype are stored in memory (Stored) and computed with (Value).
template <DType kDtype>
struct Element {
  // In the order of DType.
  using Stored = std::tuple_element_t<
      static_cast<std::size_t>(kDtype),
      std::tuple<float, double, std::uint16_t, std::uint16_t, std::int8_t, std::uint8_t,
                 std::int32_t, std::int64_t, std::int16_t, std::uint8_t>>;
  using Value = std::conditional_t<kDtype == DType::f16 || kDtype == DType::bf16, float, Stored>;
  static_assert(sizeof(Stored) == size_of(kDtype));
};

}  // namespace lockstep::detail

namespace lockstep::inline v0_2::kernels {

/// outputs[j][i] = ((inputs[0][i] op inputs[1][i]) op inputs[2][i]) …, for every output j and every
/// i below count. The order is that of inputs, so all callers get the same bits. f16 and bf16 are
/// accumulated in f32 and rounded once, to nearest, ties to even. avg multiplies by 1/inputs.size()
/// before that rounding. Integers wrap. premultiplied_sum is sum: its inputs are products. An
/// output may be one of the inputs; other overlaps are not allowed. Any alignment. There is at
/// least one input, and has_reduction(dtype, op).
void reduce(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs,
            std::span<std::byte* const> outputs, std::size_t count);

/// output[i] = input[i] · factor, for floats. f16 and bf16 are multiplied in f32 and rounded once.
/// The factor is rounded to the type of the multiplication. output may be input.
void multiply(DType dtype, double factor, const std::byte* input, std::byte* output,
              std::size_t count);

/// A sum or avg of float32 elements with a wire dtype. outputs[j][i] = round((r(inputs[0][i]) +
/// r(inputs[1][i])) + …), where r clips and rounds an element to wire.dtype. avg multiplies by
/// 1/inputs.size(): before r if wire.predivide is set, else after the sum. An output may be one of
/// the inputs; other overlaps are not allowed. Any alignment. wire.dtype is f16 or bf16, here and
/// below.
void reduce_rounded(const Wire& wire, ReduceOp op, std::span<const std::byte* const> inputs,
                    std::span<std::byte* const> outputs, std::size_t count);

// The same in three steps, for ranks that send 16-bit elements ("halves"). Each rank rounds its
// values, one rank reduces the halves of all, and each rank widens the result to float32.

/// halves[i] = r(values[i]), for a reduction over `ranks` ranks. halves may be the first half of
/// values; other overlaps are not allowed.
void round_to_halves(const Wire& wire, ReduceOp op, std::size_t ranks, const std::byte* values,
                     std::byte* halves, std::size_t count);
/// outputs[j][i] = round((inputs[0][i] + inputs[1][i]) + …). For avg, the sum is multiplied by
/// 1/inputs.size() unless wire.predivide is set. Overlaps as in reduce_rounded().
void reduce_halves(const Wire& wire, ReduceOp op, std::span<const std::byte* const> inputs,
                   std::span<std::byte* const> outputs, std::size_t count);
/// values[i] = halves[i]. halves may be the second half of values; other overlaps are not allowed.
void widen_halves(const Wire& wire, const std::byte* halves, std::byte* values, std::size_t count);

/// The instruction sets for which kernels were built and which this CPU supports, best first.
/// Kernels use the first.
std::vector<std::string> cpu_targets();

}  // namespace lockstep::kernels
