#pragma once

#include "lockstep/core/dtype.h"

namespace lockstep {

/// How float32 elements travel in a reduction: as f16 or bf16, with the sum in float32. On one host
/// they are rounded as they are read, and nothing is written in between.
/// contribution = round(clamp(x, -clip, clip) · (predivide ? 1/N : 1)); NaN stays NaN.
struct Wire {
  DType dtype = DType::f16;
  float clip = 0;  ///< largest magnitude; zero leaves all as they are
  bool predivide =
      false;  ///< for avg: divide before rounding, so that sums of halves stay in range

  bool operator==(const Wire&) const = default;
};

}  // namespace lockstep
