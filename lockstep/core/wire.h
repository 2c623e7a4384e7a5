#pragma once

#include "lockstep/core/dtype.h"

namespace lockstep {

/// How float32 elements travel in a reduction, to whoever sums them and back: as f16 or bf16, with
/// the sum in float32. On one host they are rounded as they are read, and nothing is written in
/// between.
/// contribution = round(clamp(x, -clip, clip) · (predivide ? 1/N : 1)); NaN stays NaN.
/// result = round((contribution of rank 0 + …) · (predivide ? 1 : 1/N)), without 1/N for a sum.
struct Wire {
  DType dtype = DType::f16;
  float clip = 0;  ///< largest magnitude; zero leaves all as they are
  bool predivide =
      false;  ///< for avg: divide before rounding, so that sums of halves stay in range

  bool operator==(const Wire&) const = default;
};

}  // namespace lockstep
