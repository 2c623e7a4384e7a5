#pragma once

#include <memory>
#include <string>

#include "lockstep/sync/exchange.h"

namespace lockstep {

/// The mean over ranks of gradients that travel as float16, to who sums them and back, "fp16" or
/// "fp16:clip=100": values[i] = f16(Σ_r f16(clamp(values_r[i], -clip, clip) / N)), summed in
/// float32 in rank order. NaN and Inf are passed on. For float32 parameters.
struct Fp16 {
  double clip = 0;        ///< largest magnitude of a gradient; 0 leaves all as they are
  bool predivide = true;  ///< divide by N before rounding; else after the sum

  std::string text() const;
  /// Throws: InvalidArgument for a value out of its range.
  void check() const;
  /// Throws: InvalidArgument as check() does, or for a bucket that is not float32.
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
};

/// The same in bfloat16, "bf16", which has float32's range: values[i] =
/// bf16(Σ_r bf16(values_r[i] / N)).
struct Bf16 {
  std::string text() const { return "bf16"; }
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
};

}  // namespace lockstep
