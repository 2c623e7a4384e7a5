#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/types.h"

namespace lockstep::inline v0_2::kernels {

/// Selects the random numbers of a stochastic rounding. The numbers depend on nothing else but the
/// index of the element, so every rank, processor and resumed run gets the same.
struct RandomStream {
  std::uint32_t step = 0;
  std::uint32_t parameter = 0;
  std::uint32_t tensor = 0;  ///< of the parameter and its state
};

/// rounded[i] = one of the two bfloat16 values around values[i]. The probability of each is such
/// that the expected value is values[i]. NaN stays NaN.
/// first: index of values[0] in its stream, below 2^35.
/// Source: Philox4x32-10, Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
void round_stochastically(std::span<const float> values, const RandomStream& stream,
                          std::size_t first, std::uint16_t* rounded);

/// rounded[i] = the nearest bfloat16 of values[i]; compensation[i] = the nearest bfloat16 of
/// values[i] − rounded[i], or 0 if rounded[i] is not finite.
void round_with_compensation(std::span<const float> values, std::uint16_t* rounded,
                             std::uint16_t* compensation);

/// values[i] = rounded[i] + compensation[i]. A compensation above half a unit of the last place of
/// rounded[i] is of another value, and is ignored.
void add_compensation(const std::uint16_t* rounded, const std::uint16_t* compensation,
                      std::span<float> values);

/// masters[i] = rounded[i], unless rounded[i] is the nearest value of masters[i] in that dtype.
/// dtype: of rounded, f16 or bf16.
void refresh_masters(DType dtype, const std::uint16_t* rounded, std::span<float> masters);

}  // namespace lockstep::kernels
